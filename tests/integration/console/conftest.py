"""A console over HTTP on a database of its own, with the workspace double behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import databricks.sdk  # noqa: F401 - imported before the clock of the first upload runs
import httpx
import pytest

from services.console.app import make_app
from services.console.gateways.elsewhere import Elsewhere
from services.console.gateways.pages import Files
from services.console.settings import ConsoleSettings
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.identity.guard import Identity
from shared.identity.settings import IdentitySettings
from shared.runtime.http import HttpServer
from shared.vendors.workspace import Workspace
from tests.conftest import TestDatabase
from tests.support.workspace import WorkspaceDouble

API = "/api/v1"


@dataclass
class Console:
    """A running console: a client of it, and what it stands on."""

    http: httpx.AsyncClient
    database: TestDatabase
    pool: Database
    url: str
    spool_dir: Path

    async def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return await self.call("GET", path, status, **options)

    async def post(self, path: str, status: int = 200, **options: Any) -> Any:
        return await self.call("POST", path, status, **options)

    async def call(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        answer = await self.http.request(method, API + path, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def make_agent(self, name: str = "reader", **settings: Any) -> Any:
        body = {"target": "document-agent", **settings}
        return await self.call("PUT", f"/agents/{name}", 201, json=body)

    async def enqueue(self, status: int = 201, agent: str = "reader", **body: Any) -> Any:
        if "document_id" not in body and "input" not in body:
            body["input"] = {"text": "hello"}
        return await self.post("/tasks", status, json={"agent": agent, **body})


@asynccontextmanager
async def serve(
    database: TestDatabase,
    spool_dir: Path,
    *,
    pool_size: int = 5,
    identity: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Console]:
    """A console with these settings."""
    pool = await database.open("console", size=pool_size)
    notes = Notes(pool)
    await notes.open()
    workspace = Workspace(threads=4, retry_seconds=1, http_seconds=60)
    files = Files.over(workspace)
    chosen = ConsoleSettings(spool_dir=spool_dir, **settings)
    app = make_app(
        chosen, pool, notes, files, Elsewhere(workspace, chosen.tracking_uri),
        identity=Identity(IdentitySettings(**identity or {}), pool),
    )  # fmt: skip
    server = HttpServer(app, "127.0.0.1", 0, grace_seconds=1)
    await server.open()
    url = f"http://127.0.0.1:{server.port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield Console(http, database, pool, url, spool_dir)
    finally:
        await server.close()
        await files.close()
        await notes.close()
        await pool.close()
        workspace.close()


@pytest.fixture
async def console(database: TestDatabase, tmp_path: Path) -> AsyncIterator[Console]:
    """A console whose Volume is not needed."""
    async with serve(database, tmp_path) as running:
        yield running


@pytest.fixture
async def storing_console(database: TestDatabase, workspace: WorkspaceDouble, tmp_path: Path) -> AsyncIterator[Console]:
    """A console with a Volume."""
    async with serve(database, tmp_path, max_document_bytes=3_000_000) as running:
        yield running
