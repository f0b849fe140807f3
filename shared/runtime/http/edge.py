"""What stands around every request: who may ask from where, and what browsers may do with the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.runtime.http import problem
from shared.runtime.metrics import HTTP_REQUESTS, HTTP_SECONDS

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "Cache-Control": "no-store",
}
_READ_PAST_BYTES = 16 * 2**20
BODY_SECONDS = 30.0
"""A body must have come by then; one of the larger kind must not be silent for so long."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Edge:
    """The outermost layer of the app."""

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int, other_limits: Mapping[str, int] = MappingProxyType({}),
        allowed_hosts: Iterable[str] = (), body_seconds: float = BODY_SECONDS,
    ) -> None:  # fmt: skip
        self._app = app
        self._body_seconds = body_seconds
        self._max_body_bytes = max_body_bytes
        self._limits = other_limits
        self._allowed_hosts = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let through with headers on the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        started = time.perf_counter()
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        limit = self._limits.get(scope["path"], self._max_body_bytes)
        body = _Body(receive, limit, self._body_seconds, is_large=scope["path"] in self._limits)
        refusal = self._refusal(scope, headers, limit)
        try:
            if refusal is not None:
                await refusal(scope, receive, send_with_headers)
            else:
                await self._app(scope, body.receive, send_with_headers)
        finally:
            # The route's pattern, not the path: ids must not become labels.
            route = getattr(scope.get("route"), "path", "none")
            HTTP_REQUESTS.labels(route, str(status)).inc()
            HTTP_SECONDS.labels(route).observe(time.perf_counter() - started)

    def _refusal(self, scope: Scope, headers: Headers, limit: int) -> ASGIApp | None:
        host = headers.get("host", "")
        if self._allowed_hosts and (urlsplit(f"//{host}").hostname or "") not in self._allowed_hosts:
            return problem(421, "Unknown host", "This address is not served here.", reason="unknown_host")
        if scope["method"] not in SAFE and not is_own(headers, host):
            return problem(403, "Refused", "A page of another site may not change anything here.", reason="cross_site")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            # Said before the first byte is read; bodies without a length are counted as they come.
            detail = f"The body is larger than {limit} bytes."
            # A client that is cut off while it sends may never see the answer, so a modest rest is read past.
            closing = {"Connection": "close"} if int(length) > _READ_PAST_BYTES else None
            return problem(413, "Too large", detail, reason="too_large", headers=closing)
        return None


class _Body:
    """A request's body as it comes: so many bytes, in such a time. A large one must only never fall silent."""

    def __init__(self, receive: Receive, limit: int, seconds: float, *, is_large: bool) -> None:
        self._receive = receive
        self._limit = self._left = limit
        self._seconds = seconds
        self._is_large = is_large
        self._until: float | None = asyncio.get_running_loop().time() + seconds

    async def receive(self) -> Message:
        """The next message. Raises HTTPException 408 or 413."""
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "The body did not come in time.", {"Connection": "close"}) from None
        if not message.get("more_body", False):
            self._until = None  # from here on only the client's going away is waited for
        elif self._is_large:
            self._until = asyncio.get_running_loop().time() + self._seconds
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, f"The body is larger than {self._limit} bytes.")
        return message


def is_own(headers: Headers, host: str) -> bool:
    """Whether a request that changes something comes from our own page or from no page at all."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == host
