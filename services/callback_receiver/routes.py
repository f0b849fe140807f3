"""The callback's HTTP: bytes are bounded and verified before anything in them is looked at.

The order is fixed: size, signature, attempt id, body, settlement. Every form of a bad signature gets the same
answer. The endpoint is plain ASGI: at thousands of callbacks a second a request object costs more than the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.callback_receiver import metrics, policy
from services.callback_receiver.messages import Kind, Report, Settled, Verdict, read_report
from services.callback_receiver.settings import CallbackReceiverSettings
from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, is_signed_by
from shared.contract.errors import RejectedError, TransientError
from shared.identity.jwks import SignedTokens
from shared.runtime.http import problem

log = structlog.get_logger()

Settle = Callable[[Report], Awaitable[Settled]]
Clock = Callable[[], float | None]

_TIMESTAMP = TIMESTAMP_HEADER.lower().encode()
_KEY_ID = KEY_ID_HEADER.lower().encode()
_SIGNATURE = SIGNATURE_HEADER.lower().encode()
_WANTED = frozenset({
    _TIMESTAMP, _KEY_ID, _SIGNATURE, b"content-length", b"content-encoding", b"authorization", b"x-forwarded-for",
})  # fmt: skip
_JSON = [(b"content-type", b"application/json")]
_KINDS = {kind.value: kind for kind in Kind}
_PREFIX = "/callbacks/v1/attempts/"
_LINGER_SECONDS = 10.0
_LINGER_BYTES = 67_108_864


class RefusedError(Exception):
    """The request ends here, with this answer."""

    def __init__(self, answer: Response, cause: str) -> None:
        super().__init__(cause)
        self.answer = answer
        self.cause = cause


class GoneError(Exception):
    """The sender hung up before it had sent its body."""


def unsigned(cause: str) -> RefusedError:
    """The one 401; the cause is counted and not told."""
    return RefusedError(
        problem(401, "Not signed", "The callback is not signed with a known key and fresh time."), cause
    )


def too_many() -> RefusedError:
    """429 for a source that was refused too often; nothing of its body is read."""
    return RefusedError(problem(429, "Too many refusals", "Wait a minute.", headers={"Retry-After": "60"}), "too_many")


def not_found() -> RefusedError:
    """The one 404 for an attempt."""
    return RefusedError(problem(404, "No such attempt", "No attempt has this id; do not send it again."), "missing")


def too_large(limit: int) -> RefusedError:
    """413, and the way out of it."""
    detail = f"A callback has at most {limit} bytes; store the result first and say result_stored."
    return RefusedError(problem(413, "Too large", detail, headers={"Connection": "close"}), "too_large")


def unavailable(detail: str, seconds: float | None, cause: str) -> RefusedError:
    """503: nothing was written, offer it again."""
    headers = {"Retry-After": str(max(1, round(seconds or 1)))}
    return RefusedError(problem(503, "Try again", detail, headers=headers), cause)


class Callbacks:
    """The endpoint. `settle` answers after the commit; `clock` is the database's, None while it is not known."""

    def __init__(
        self, settle: Settle, clock: Clock, settings: CallbackReceiverSettings, tokens: SignedTokens | None = None
    ) -> None:
        self._settle = settle
        self._clock = clock
        self._settings = settings
        self._keys = {key_id.encode(): secret.get_secret_value().encode() for key_id, secret in settings.keys.items()}
        self._tokens = tokens
        self._sources = policy.Sources(settings.refusals_per_minute, settings.proxies)
        self.held_bytes = 0
        self._counted = {
            (kind, status): metrics.CALLBACKS.labels(kind, str(status))
            for kind in Kind
            for status in (200, 401, 404, 408, 413, 415, 422, 429, 500, 503)
        }

    async def __call__(self, attempt: str, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one callback."""
        started = time.perf_counter()
        try:
            answer = await self._answer(attempt, kind, scope, receive)
        except RefusedError as refused:
            metrics.REFUSED.labels(refused.cause).inc()
            status = refused.answer.status_code
            await _refuse(refused.answer, receive, send)
        except GoneError:
            metrics.REFUSED.labels("hung_up").inc()
            return
        except Exception:
            log.exception("callback_failed", kind=kind.value)
            status = 500
            await _refuse(problem(500, "Internal error", "The report was not written."), receive, send)
        else:
            status = 200
            await send({"type": "http.response.start", "status": 200,
                        "headers": [*_JSON, (b"content-length", str(len(answer)).encode())]})  # fmt: skip
            await send({"type": "http.response.body", "body": answer})
        self._counted[kind, status].inc()
        metrics.CALLBACK_SECONDS.observe(time.perf_counter() - started)

    async def _answer(self, attempt: str, kind: Kind, scope: Scope, receive: Receive) -> bytes:
        headers = {name: value for name, value in scope["headers"] if name in _WANTED}
        source = self._sources.source_of(
            (scope.get("client") or ("", 0))[0], headers.get(b"x-forwarded-for", b"").decode("latin-1")
        )
        if self._sources.is_blocked(source, time.monotonic()):
            raise too_many()
        try:
            return await self._believed(attempt, kind, headers, receive)
        except RefusedError as refused:
            if refused.answer.status_code == 401:
                self._sources.refuse(source)
            raise

    async def _believed(self, attempt: str, kind: Kind, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        proof = await self._credentials(headers)
        size = 0
        try:
            raw, size = await self._body(receive)
            if proof is not None and not is_signed_by(*proof[:2], attempt, kind.value, raw, signature=proof[2]):
                raise unsigned("signature")
            attempt_id = policy.attempt_of(attempt)
            if attempt_id is None:
                raise not_found()
            settled = await self._settled(read_report(attempt_id, kind, raw))
        except RejectedError as error:
            raise RefusedError(
                problem(422, "Not acceptable", error.message, reason=error.reason), error.reason
            ) from error
        except TransientError as error:
            seconds = error.retry_after_seconds
            raise unavailable("The report was not written; send it again.", seconds, error.reason) from error
        finally:
            self.held_bytes -= size
        return settled.answer()

    async def _settled(self, report: Report) -> Settled:
        settled = await self._settle(report)
        if settled.verdict is Verdict.MISSING:
            raise not_found()
        if settled.verdict is Verdict.RESULT_MISSING:
            raise RejectedError("result_stored was said, but the result's row is not there", reason="result_missing")
        return settled

    async def _credentials(self, headers: dict[bytes, bytes]) -> tuple[bytes, str, str] | None:
        """Key, timestamp and signature, as far as the headers alone can tell good from bad; None for a good token."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            detail = "A callback is sent as it was signed, without Content-Encoding."
            raise RefusedError(problem(415, "Encoded", detail), "encoded")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._settings.max_body_bytes:
            raise too_large(self._settings.max_body_bytes)
        if self._tokens is not None and _SIGNATURE not in headers:
            await self._judge_token(self._tokens, headers.get(b"authorization", b"").decode("latin-1"))
            return None
        key = self._keys.get(headers.get(_KEY_ID, b""))
        if key is None:
            raise unsigned("key")
        now = self._clock()
        if now is None:
            raise unavailable("The database's clock is not known yet.", 1, "clock_unknown")
        timestamp = headers.get(_TIMESTAMP, b"").decode("latin-1")
        if not policy.is_fresh(timestamp, now, self._settings.window_seconds):
            raise unsigned("timestamp")
        signature = headers.get(_SIGNATURE, b"").decode("latin-1")
        if self._settings.scoped_only and not signature.startswith("v2="):
            raise unsigned("unscoped")
        return key, timestamp, signature

    async def _judge_token(self, tokens: SignedTokens, authorization: str) -> None:
        """The platform's own token of the agents' principal; every other answer is the one 401."""
        kind, _, token = authorization.partition(" ")
        try:
            claims = await tokens.claims(token.strip()) if kind.lower() == "bearer" else {}
        except RejectedError:
            raise unsigned("token") from None
        except TransientError as error:
            raise unavailable("The issuer's keys are not known yet.", 1, error.reason) from error
        if claims.get("sub") not in self._settings.token_subjects:
            raise unsigned("token")

    async def _body(self, receive: Receive) -> tuple[bytes, int]:
        """The whole body, and what it weighs in `_held_bytes`."""
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            self._hold(len(body), 0)
            return body, len(body)
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                return await self._rest(receive, message)
        except TimeoutError:
            detail = f"The body did not arrive within {self._settings.body_seconds:g} s."
            raise RefusedError(problem(408, "Too slow", detail, headers={"Connection": "close"}), "too_slow") from None

    async def _rest(self, receive: Receive, message: Any) -> tuple[bytes, int]:
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                if message["type"] != "http.request":
                    raise GoneError  # noqa: TRY301 - the weight is given back like in every other end
                chunk = message.get("body", b"")
                self._hold(len(chunk), size)
                size += len(chunk)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks), size
                message = await receive()
        except BaseException:
            self.held_bytes -= size
            raise

    def _hold(self, more: int, held: int) -> None:
        if held + more > self._settings.max_body_bytes:
            raise too_large(self._settings.max_body_bytes)
        if self.held_bytes + more > self._settings.max_held_bytes:
            raise unavailable("Too many bodies at once.", 1, "memory")
        self.held_bytes += more


async def _refuse(answer: Response, receive: Receive, send: Send) -> None:
    """Answer at once; where the connection is to close, let a bounded rest of the body run out first.

    Closing on unread bytes resets the connection, and the sender would never see why.
    """
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    lingers = answer.headers.get("connection") == "close"
    await send({"type": "http.response.body", "body": answer.body, "more_body": lingers})
    if not lingers:
        return
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    break
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})


def create_app(callbacks: Callbacks) -> ASGIApp:
    """The receiver's ASGI application: what is a callback goes straight to its endpoint, the rest to a plain 404."""

    async def refuse(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return problem(status, "Not found" if status == 404 else "Internal error")

    others = Starlette(exception_handlers={404: refuse, Exception: refuse})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # A router, its middleware and a request object cost as much as the signature and the parsing together.
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIX):
            await others(scope, receive, send)
            return
        attempt, _, kind = scope["path"][len(_PREFIX) :].partition("/")
        if kind not in _KINDS:
            await others(scope, receive, send)
        elif scope["method"] != "POST":
            await problem(405, "Only POST", headers={"Allow": "POST"})(scope, receive, send)
        else:
            await callbacks(attempt, _KINDS[kind], scope, receive, send)

    return app
