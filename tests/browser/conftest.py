"""One stack and one Chromium for all stories of the pages: both take seconds to start, so the stories share them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, async_playwright

from shared.db.connecting import connect
from shared.testing.wait import until
from tests.support.pages import SERVICES, Pages, PageStack
from tests.support.postgres import PostgresServer
from tests.support.workspace import WorkspaceDouble

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-port=0",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="package")
def page_stack(
    postgres: PostgresServer, shared_workspace: WorkspaceDouble, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PageStack]:
    """Just enough for the pages."""
    name = f"pages_{os.getpid()}"
    asyncio.run(postgres.clone(name))
    stack = PageStack(postgres, name, shared_workspace.environment(), tmp_path_factory.mktemp("pages"))
    stack.open_front_door()
    try:
        for service in SERVICES:
            stack.start(service)
        yield stack
    finally:
        stack.destroy()
        asyncio.run(postgres.drop(name))


@pytest.fixture
async def pages(page_stack: PageStack) -> AsyncIterator[Pages]:
    page_stack.mend()
    owner = await connect(page_stack.server.url(database=page_stack.database), name="test-owner")
    try:
        await page_stack.empty(owner)
        yield Pages(page_stack, owner)
    finally:
        await owner.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running Chromium."""
    if not Path(CHROMIUM).exists():
        pytest.fail("these tests need Debian's chromium: apt-get install chromium")
    home = tmp_path_factory.mktemp("chromium")
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={home}"], stdout=log, stderr=log, env={**os.environ, "HOME": str(home)}
        )
    said = home / "DevToolsActivePort"
    try:
        asyncio.run(until(lambda: said.exists() and len(said.read_text().split()) == 2, seconds=60))
        yield f"http://127.0.0.1:{said.read_text().split()[0]}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        yield await playwright.chromium.connect_over_cdp(chromium)


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
