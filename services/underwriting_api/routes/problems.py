"""Errors as people and programs read them (RFC 9457), and what stands around every request."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.underwriting_api.metrics import REQUESTS
from shared.contract.errors import ConflictError, LockkeeperError, MissingError, RejectedError, TransientError
from shared.runtime.http import problem

log = structlog.get_logger()

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Edge:
    """The outermost layer: bounded bodies, no changes from foreign pages, headers on every answer."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        left = self._limit

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body is larger than {self._limit} bytes.")
            return message

        headers = Headers(scope=scope)
        try:
            if scope["method"] not in _SAFE and not _is_own(headers):
                refused = problem(403, "Refused", "A page of another site may not change anything here.")
                await refused(scope, receive, send_with_headers)
            else:
                await self._app(scope, bounded, send_with_headers)
        finally:
            REQUESTS.labels(getattr(scope.get("route"), "path", "none"), str(status)).inc()


def _is_own(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")


def handle_problems(app: FastAPI) -> None:
    """Answer every error of this app as a problem."""
    app.add_exception_handler(LockkeeperError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, LockkeeperError)  # noqa: S101 - registered for it
    match error:
        case TransientError():
            log.warning("request_postponed", reason=error.reason, error=error.message)
            what = "The database" if error.reason == "database_unavailable" else "Something that this needs"
            return problem(
                503, "Not available now", f"{what} does not answer; runs go on. Try again in a moment.",
                headers={"Retry-After": "2"}, reason=error.reason,
            )  # fmt: skip
        case ConflictError():
            return problem(409, "Conflict", error.message, reason=error.reason)
        case MissingError():
            return problem(404, "Not found", error.message, reason=error.reason)
        case RejectedError():
            return problem(422, "Not valid", error.message, reason=error.reason)
        case _:
            return await _unforeseen(_, error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    errors = [
        {"loc": [str(part) for part in each["loc"]], "msg": str(each["msg"]).removeprefix("Value error, ")}
        for each in error.errors()[:20]
    ]
    said = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in errors)
    return problem(422, "Not valid", said, reason="not_valid", errors=errors)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    title = HTTPStatus(error.status_code).phrase
    return problem(error.status_code, title, "" if error.detail == title else str(error.detail))


async def _unforeseen(_: Request, error: Exception) -> Response:
    reference = uuid.uuid4().hex[:12]
    log.error("request_failed", reference=reference, exc_info=error)
    said = f"It is in the log under {reference}; the request may be tried again."
    return problem(500, "Something went wrong here", said, reason="internal", reference=reference)
