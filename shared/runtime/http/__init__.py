"""HTTP inside a process: an ASGI app under uvicorn on the process's own event loop, and the ops app."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from typing_extensions import override

from shared.runtime.http.wire import WiredProtocol

PROBLEM_TYPE = "application/problem+json"

_SILENT_PEER_MILLISECONDS = 20_000


def problem(
    status: int, title: str, detail: str = "", *, headers: dict[str, str] | None = None, **extra: object
) -> Response:
    """An error answer as RFC 9457 says: what happened, to what, and what to do."""
    body: dict[str, object] = {"type": "about:blank", "status": status, "title": title, **extra}
    if detail:
        body["detail"] = detail
    return JSONResponse(body, status, headers=headers, media_type=PROBLEM_TYPE)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the process decides when to stop."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """One listening socket; `port` is known as soon as `open` returns."""

    def __init__(self, app: ASGIApp, host: str, port: int, *, grace_seconds: float = 5) -> None:
        self._host = host
        self.port = port
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=max(1, int(grace_seconds)), timeout_keep_alive=75, loop="none", backlog=2048,
            http=WiredProtocol,
        )  # fmt: skip
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Bind and serve. Raises OSError when the port is taken."""
        listening = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A peer that acknowledges nothing for so long is gone; accepted connections inherit it.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_PEER_MILLISECONDS)
        listening.bind((self._host, self.port))
        listening.listen(2048)
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve([listening]), name=f"http-{self.port}")

    async def close(self) -> None:
        """Stop accepting, let running requests end within the grace time, then close."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def ops_app(
    is_alive: Callable[[], list[str]], is_ready: Callable[[], list[str]], refresh: Callable[[], None]
) -> Starlette:
    """`/livez` (the loops turn; never asks the database), `/readyz` and `/metrics` of this process.

    The two questions return what is wrong, nothing when all is well; `refresh` sets gauges of this process.
    """

    def answer(troubles: list[str]) -> Response:
        body = {"status": "unavailable" if troubles else "ok", "reasons": troubles}
        return JSONResponse(body, 503 if troubles else 200)

    async def livez(_: Request) -> Response:
        return answer(is_alive())

    async def readyz(_: Request) -> Response:
        return answer(is_ready())

    async def metrics(request: Request) -> Response:
        refresh()
        # Prometheus asks for OpenMetrics, which alone can carry exemplars.
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(REGISTRY), headers={"Content-Type": kind})

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])
