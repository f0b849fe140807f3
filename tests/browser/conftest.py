"""The console and the notifier as processes behind the local stack's front door, and a Chromium to look at them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, async_playwright

from deploy.local.front_door import configuration
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.support.postgres import free_port
from tests.support.statements import ROOT
from tests.support.workspace import WorkspaceDouble

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@dataclass
class Pages:
    """A stack that is just large enough for the pages."""

    database: TestDatabase
    url: str
    ports: dict[str, int]
    logs: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, service: str, **settings: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")} | {
            "LOCKKEEPER_DATABASE_URL": self.database.url(service),
            "LOCKKEEPER_PORT": str(self.ports[service]),
            **settings,
        }
        with (self.logs / service).open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [sys.executable, "-m", f"services.{service}"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def open_front_door(self, configured: Path) -> None:
        caddy = str(Path(sys.executable).with_name("caddy"))
        with (self.logs / "front_door").open("ab") as log:
            self.processes["front_door"] = subprocess.Popen(
                [caddy, "run", "--config", str(configured)],
                stdout=log, stderr=log, env={**os.environ, "XDG_DATA_HOME": str(self.logs)},
            )  # fmt: skip

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        process.wait(20)

    async def serves(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=10, trust_env=False) as http:

            async def answers() -> bool:
                try:
                    if (await http.get("/api/v1/state")).status_code != 200:
                        return False
                    async with http.stream("GET", "/events") as stream:
                        return stream.status_code == 200
                except httpx.HTTPError:
                    return False

            await until(answers, seconds=60, every=0.2)


@pytest.fixture
async def pages(database: TestDatabase, workspace: WorkspaceDouble, tmp_path: Path) -> AsyncIterator[Pages]:
    ports = {name: free_port() for name in ("front_door", "console", "notifier", "callback_receiver")}
    running = Pages(database, f"http://127.0.0.1:{ports['front_door']}", ports, tmp_path)
    await database.owner.execute(
        "INSERT INTO lockkeeper.agents (name, target, max_concurrent_tasks, max_tpm) VALUES ('reader', 'job', 4, 60000)"
    )
    file = tmp_path / "front_door.json"
    file.write_text(json.dumps(configuration(ports["front_door"], {name: ports[name] for name in ports})))
    running.open_front_door(file)
    for service in ("console", "notifier"):
        running.start(service)
    try:
        await running.serves()
        yield running
    finally:
        for name in list(running.processes):
            running.end(name)


@pytest.fixture(scope="session")
def chromium() -> str:
    if not Path(CHROMIUM).exists():
        pytest.fail("these tests need Debian's chromium: apt-get install chromium")
    return CHROMIUM


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        await launched.close()


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A reader's browser. What it complains about (scripts, policies) fails the test."""
    complaints: list[str] = []
    opened = await browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="Europe/Berlin")
    opened.on("weberror", lambda error: complaints.append(str(error.error)))
    opened.on(
        "console", lambda message: complaints.append(message.text) if "Content Security" in message.text else None
    )
    yield opened
    await opened.close()
    assert complaints == []
