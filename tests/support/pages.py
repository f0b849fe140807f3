"""The console and the notifier as processes behind the local stack's front door, and what stories of the pages stage."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pypdfium2
from playwright.async_api import Page, expect

from deploy.local.folder import free_port
from deploy.local.front_door import configuration
from shared.contract.ownership import role_of
from shared.testing.wait import until
from tests.support.postgres import PostgresServer
from tests.support.statements import ROOT

SECONDS = 1000
SERVICES = ("console", "notifier")
_FILLED = (
    "tasks", "task_events", "documents", "agents", "agent_changes", "customers", "operator_audit", "cost_requests",
    "cost_entries", "task_counted", "task_totals",
)  # fmt: skip
_EMPTY = f"TRUNCATE {', '.join(f'lockkeeper.{name}' for name in _FILLED)} CASCADE"
_READER = (
    "INSERT INTO lockkeeper.agents (name, target, max_concurrent_tasks, max_tpm) VALUES ('reader', 'job', 4, 60000)"
)


@dataclass
class PageStack:
    """The processes, over one database; every story of a worker lives with them."""

    server: PostgresServer
    database: str
    workspace: Mapping[str, str]
    logs: Path
    ports: dict[str, int] = field(
        default_factory=lambda: {name: free_port() for name in ("front_door", *SERVICES, "callback_receiver")}
    )
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _settings: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['front_door']}"

    def open_front_door(self) -> None:
        caddy = str(Path(sys.executable).with_name("caddy"))
        file = self.logs / "front_door.json"
        file.write_text(json.dumps(configuration(self.ports["front_door"], dict(self.ports))))
        with (self.logs / "front_door").open("ab") as log:
            self._processes["front_door"] = subprocess.Popen(
                [caddy, "run", "--config", str(file)],
                stdout=log, stderr=log, env={**os.environ, "XDG_DATA_HOME": str(self.logs)},
            )  # fmt: skip

    def start(self, service: str, **settings: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
        environment = {
            **clean, **self.workspace, "LOCKKEEPER_PORT": str(self.ports[service]),
            "LOCKKEEPER_DATABASE_URL": self.server.url(role_of(service), self.database), **settings,
        }  # fmt: skip
        self._settings[service] = settings
        with (self.logs / service).open("ab") as log:
            self._processes[service] = subprocess.Popen(
                [sys.executable, "-m", f"services.{service}"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        process.wait(20)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait(20)

    def mend(self) -> None:
        """Every service as it was at first, whatever a story did to it."""
        for service in SERVICES:
            if service in self._processes and self._settings[service]:
                self.end(service)
            if service not in self._processes:
                self.start(service)

    def destroy(self) -> None:
        for name in list(self._processes):
            self.end(name)

    async def empty(self, owner: asyncpg.Connection) -> None:
        """Nothing but one agent, and a notifier that has forgotten what was before."""
        await owner.execute(_EMPTY)
        await owner.execute(_READER)
        await owner.execute("SELECT pg_notify('lockkeeper_config_changed', '[]')")

        async with httpx.AsyncClient(base_url=self.url, timeout=10, trust_env=False) as http:

            async def shows_nothing() -> bool:
                try:
                    if (await http.get("/api/v1/state")).status_code != 200:
                        return False
                    async with http.stream("GET", "/events") as stream:
                        return stream.status_code == 200 and await _first_snapshot(stream) == []
                except httpx.HTTPError:
                    return False

            await until(shows_nothing, seconds=60, every=0.2)


async def _first_snapshot(stream: httpx.Response) -> list[Any] | None:
    event = ""
    async for line in stream.aiter_lines():
        event = line.removeprefix("event: ") if line.startswith("event: ") else event
        if event == "snapshot" and line.startswith("data: "):
            shown: list[Any] = json.loads(line.removeprefix("data: "))["tasks"]
            return shown
    return None


@dataclass(frozen=True)
class Pages:
    """What one story has: the stack, empty but for one agent, and a superuser's connection for staging and looking."""

    stack: PageStack
    owner: asyncpg.Connection

    @property
    def url(self) -> str:
        return self.stack.url


def pdf() -> bytes:
    document = pypdfium2.PdfDocument.new()
    document.new_page(200, 300)
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


async def note(pages: Pages, *tasks: object) -> None:
    await pages.owner.execute(
        "SELECT pg_notify('lockkeeper_task_changed', to_jsonb($1::text[])::text)", [str(each) for each in tasks]
    )


async def add_task(pages: Pages, name: str | None = None, **columns: Any) -> uuid.UUID:
    document = None
    if name is not None:
        document = await pages.owner.fetchval(
            "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, pages, uploaded_by) "
            "VALUES ($1, $2, 'x', 1, 3, 'local') RETURNING id",
            name, f"/{uuid.uuid4()}",
        )  # fmt: skip
    named = {"agent": "reader", "document_id": document, **columns}
    places = ", ".join(f"${n}" for n in range(1, len(named) + 1))
    task_id: uuid.UUID = await pages.owner.fetchval(
        f"INSERT INTO lockkeeper.tasks ({', '.join(named)}) VALUES ({places}) RETURNING id", *named.values()
    )
    await note(pages, task_id)
    return task_id


async def fail(pages: Pages, task_id: uuid.UUID) -> None:
    await pages.owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'failed', finished_at = now(), version = version + 1, verb = 'fail', "
        'error = \'{"reason": "password_required", "message": "The document needs a password."}\' WHERE id = $1',
        task_id,
    )
    await note(pages, task_id)


async def is_live(page: Page, mode: str = "live", seconds: float = 20) -> None:
    await expect(page.locator("#freshness")).to_have_attribute("data-mode", mode, timeout=seconds * SECONDS)
