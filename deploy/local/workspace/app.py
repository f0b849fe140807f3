"""Composition root: settings, memory, rooms, one ASGI application, one server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deploy.local.workspace.branches import BranchesRoom
from deploy.local.workspace.credentials import CredentialsRoom
from deploy.local.workspace.faults import FaultBook, FaultsRoom
from deploy.local.workspace.files import FilesRoom
from deploy.local.workspace.jobs import JobsRoom
from deploy.local.workspace.oauth import OAuthRoom
from deploy.local.workspace.operation import Answer, ApiError, Operation, Room, json_response
from deploy.local.workspace.processes import ProcessPool, child_environment
from deploy.local.workspace.runs import RunEngine
from deploy.local.workspace.serving import ServingRoom
from deploy.local.workspace.settings import WorkspaceSettings
from deploy.local.workspace.signing import Signer
from deploy.local.workspace.sql import SqlRoom
from deploy.local.workspace.store import Store
from deploy.local.workspace.volumes import Volumes
from deploy.local.workspace.worker import Options

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 3
# Longer than any client keeps an idle connection, so that a request never meets one that is just closing.
_KEEP_ALIVE_SECONDS = 120


class Workspace:
    """Everything one running double consists of."""

    def __init__(self, settings: WorkspaceSettings) -> None:
        data_dir = settings.data_dir.resolve()
        log_dir = data_dir / "logs"
        log_dir.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._store = Store(data_dir / "workspace.sqlite")
        self._faults = FaultBook()
        signer = Signer.from_file(data_dir / "signing.key")
        volumes = Volumes(store=self._store, blob_dir=data_dir / "volumes")
        self._pool = _pool(settings, log_dir)
        self._engine = RunEngine(
            store=self._store,
            faults=self._faults,
            pool=self._pool,
            resolve_volume=volumes.local_copy,
            code_dir=settings.code_dir.resolve(),
            log_dir=log_dir,
            start_seconds=settings.run_start_seconds,
        )
        self._oauth = OAuthRoom(
            secrets=settings.secrets(),
            signer=signer,
            token_seconds=settings.token_seconds,
            workspace_id=settings.workspace_id,
            account_id=settings.account_id,
            cloud=settings.cloud,
        )
        self._faults_room = FaultsRoom(self._faults)
        self._rooms: list[Room] = [
            self._oauth,
            JobsRoom(store=self._store, engine=self._engine),
            FilesRoom(volumes=volumes, signer=signer, faults=self._faults),
            ServingRoom(endpoints=settings.serving_endpoints, faults=self._faults),
            SqlRoom(store=self._store, faults=self._faults, settings=settings),
            CredentialsRoom(store=self._store, settings=settings),
            BranchesRoom(settings=settings),
            self._faults_room,
        ]

    def application(self) -> Starlette:
        """The ASGI application that serves every room."""
        operations = [operation for room in self._rooms for operation in room.operations()]
        self._faults_room.know(list(dict.fromkeys(operation.name for operation in operations)))
        return Starlette(
            routes=[
                Route("/", self.page, methods=["GET"]),
                Route("/health", self.health, methods=["GET"]),
                *map(self._route, operations),
            ],
            exception_handlers={ApiError: _api_error, HTTPException: _unknown_call, Exception: _broken},
            lifespan=self._lifespan,
        )

    async def page(self, _: Request) -> Response:
        """What a person sees who follows a link to a run."""
        return HTMLResponse(
            "<!doctype html><title>Workspace double</title><h1>The double of a Databricks workspace</h1>"
            "<p>It has no pages. What it knows of a run is in the API: /api/2.2/jobs/runs/get?run_id=…</p>"
        )

    async def health(self, _: Request) -> Response:
        """Ready as soon as it answers; how many processes are warm and what runs."""
        return json_response(
            {
                "status": "ready",
                "pid": os.getpid(),
                "processes": {"pids": self._pool.pids(), "idle": self._pool.ready_count()},
                "runs": self._engine.counts(),
            }
        )

    def _route(self, operation: Operation) -> Route:
        guarded = self._faults.guard(operation) if not operation.name.startswith("faults.") else operation.answer
        answer = guarded if operation.public else self._authenticated(guarded)
        route = Route(operation.path, answer, methods=[operation.method])
        # Starlette lets GET answer HEAD too; here HEAD is an operation of its own.
        route.methods = {operation.method}
        return route

    def _authenticated(self, answer: Answer) -> Answer:
        async def checked(request: Request) -> Response:
            request.state.client_id = self._oauth.principal(request)
            return await answer(request)

        return checked

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._engine.start()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._settings.warm_up_delay_seconds, self._pool.ensure_started)
        try:
            yield
        finally:
            timer.cancel()
            await self._engine.close()
            await self._pool.close()
            self._store.close()


class DroppableProtocol(HttpToolsProtocol):
    """The server's HTTP protocol, with a way for a fault to close the connection without a reply."""

    @override
    def on_message_begin(self) -> None:
        """Hand the transport's abort to the request."""
        super().on_message_begin()
        # The server's own type knows registered extensions only, whose values are dictionaries.
        self.scope["extensions"] = {"workspace.abort": {"close": self.transport.abort}}


def serve() -> None:
    """Run the double until SIGTERM or SIGINT; prints one JSON line with its address when it listens."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = WorkspaceSettings.load()
    except (ValidationError, ValueError) as error:
        sys.exit(f"workspace double: {error}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        sys.exit(f"workspace double: cannot listen on {settings.host}:{settings.port}: {error.strerror}")
    server = uvicorn.Server(
        uvicorn.Config(
            Workspace(settings).application(),
            http=DroppableProtocol,
            loop="uvloop",
            access_log=False,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
    )
    host, port = listener.getsockname()[:2]
    sys.stdout.write(
        json.dumps({"event": "workspace_listens", "url": f"http://{host}:{port}", "pid": os.getpid()}) + "\n"
    )
    sys.stdout.flush()
    server.run(sockets=[listener])


def _pool(settings: WorkspaceSettings, log_dir: Path) -> ProcessPool:
    return ProcessPool(
        size=settings.processes,
        runs_per_process=settings.runs_per_process,
        grace_seconds=settings.cancel_grace_seconds,
        options=Options(
            parent=os.getpid(),
            nice=settings.nice,
            code_dir=str(settings.code_dir.resolve()),
            entry_points=settings.run_entry_points,
        ),
        environment=child_environment(os.environ, settings.agent_environment),
        log_dir=log_dir,
    )


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - Starlette calls this for ApiError only
    return error.response()


async def _unknown_call(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - Starlette calls this for HTTPException only
    if error.status_code in {404, 405}:
        message = f"No API found for '{request.method} {request.url.path}'"
        return ApiError(404, "ENDPOINT_NOT_FOUND", message).response()
    return ApiError(error.status_code, "BAD_REQUEST", error.detail).response()


async def _broken(_: Request, error: Exception) -> Response:
    return ApiError(500, "INTERNAL_ERROR", f"{type(error).__name__}: {error}").response()
