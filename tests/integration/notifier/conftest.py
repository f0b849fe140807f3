"""Notifiers as whole processes' bodies on the test's loop, and a browser's side of the stream."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from services.notifier.app import compose
from services.notifier.gateways.browsers import Browser, Browsers
from services.notifier.messages import chunk
from services.notifier.settings import NotifierSettings
from shared.runtime.process import Process, _Body
from shared.runtime.settings import RuntimeSettings
from shared.testing.wait import until
from tests.conftest import TestDatabase


@dataclass
class Event:
    name: str
    data: Any
    id: str | None


@dataclass
class Stream:
    """What a browser has received so far."""

    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    events: list[Event] = field(default_factory=list)
    comments: int = 0
    retry: int | None = None
    is_over: bool = False

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    async def wait(self, name: str, such_that: Callable[[Any], bool] = lambda _: True, seconds: float = 10) -> Event:
        """The latest event of this name that fits."""

        def found() -> Event | None:
            return next((event for event in reversed(self.named(name)) if such_that(event.data)), None)

        event = await until(found, seconds=seconds)
        assert event is not None
        return event


@dataclass
class Stuck:
    """A browser that takes nothing by itself."""

    end: socket.socket
    browser: Browser
    held: int = 0
    """What was written to it before it counted as behind."""

    async def fill(self) -> int:
        """Hand over comments until they wait; how many bytes it took."""
        filled = 0

        def is_full() -> bool:
            nonlocal filled
            some = chunk(b":" + b"x" * 50_000 + b"\n\n")
            self.browser.notice({"filling": some}, some)
            filled += len(some)
            return self.browser.is_behind

        await until(is_full)
        return filled

    async def take(self) -> bytes:
        """All that comes until nothing waits any more, without the comments."""
        taken = b""
        while self.browser.is_behind:
            taken += await asyncio.get_running_loop().sock_recv(self.end, 1_000_000)
        self.browser.notice({"mark": MARK}, MARK)
        while not taken.endswith(MARK):
            taken += await asyncio.get_running_loop().sock_recv(self.end, 1_000_000)
        return taken


MARK = chunk(b": mark\n\n")


@dataclass
class Notifier:
    """A running notifier."""

    url: str
    process: Process
    body: _Body
    stop: asyncio.Event
    life: asyncio.Task[int]

    @asynccontextmanager
    async def stream(self, query: str = "", **headers: str) -> AsyncIterator[Stream]:
        """An open stream that is read in the background."""
        received = Stream()
        async with httpx.AsyncClient(timeout=httpx.Timeout(5, read=None), trust_env=False) as http:
            reading = asyncio.create_task(self._read(http, query, headers, received))
            await until(lambda: received.status)
            try:
                yield received
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    @property
    def browsers(self) -> Browsers:
        """Who looks."""
        return self.body._parts.loops[0]._feed.browsers

    @asynccontextmanager
    async def stuck(self) -> AsyncIterator[Stuck]:
        """A stream whose browser takes nothing until it is asked to, and whose buffers are full."""
        before = set(self.browsers)
        with socket.socket() as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.to_thread(end.connect, ("127.0.0.1", int(self.url.rpartition(":")[2])))
            end.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(end, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            (browser,) = await until(lambda: set(self.browsers) - before)
            await until(lambda: not browser.needs_snapshot)
            stuck = Stuck(end, browser)
            stuck.held = await stuck.fill()
            yield stuck

    async def _read(self, http: httpx.AsyncClient, query: str, headers: dict[str, str], received: Stream) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with http.stream("GET", f"{self.url}/events{query}", headers=named) as answer:
            received.status, received.headers = answer.status_code, answer.headers
            lines: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    received.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    lines[name] = value
                elif lines:
                    received.retry = int(lines.pop("retry", received.retry or 0))
                    if "event" in lines:
                        received.events.append(Event(lines["event"], json.loads(lines["data"]), lines.get("id")))
                    lines = {}
        received.is_over = True

    async def end(self) -> None:
        """As SIGTERM does it."""
        self.stop.set()
        await self.life
        await self.body.end()


StartNotifier = Callable[..., Any]


@pytest.fixture
async def start_notifier(database: TestDatabase) -> AsyncIterator[StartNotifier]:
    """Starts notifiers on the test's database."""
    running: list[Notifier] = []

    async def start(**settings: Any) -> Notifier:
        common = RuntimeSettings(database_url=database.url("notifier"), replica=f"n{len(running)}", grace_seconds=5)
        process = Process("notifier", common)
        await process.database.open()
        stop = asyncio.Event()
        body = _Body(process, await compose(process, NotifierSettings(**settings)), stop)
        life = asyncio.create_task(body.live())
        await until(lambda: body._http is not None and body._http.port and process.is_live)
        assert body._http is not None
        notifier = Notifier(f"http://127.0.0.1:{body._http.port}", process, body, stop, life)
        running.append(notifier)
        return notifier

    yield start
    for notifier in running:
        if not notifier.process.draining:
            await notifier.end()


@dataclass
class Tasks:
    """Writes tasks as the other services would, and sends their notes."""

    database: TestDatabase

    async def add(self, note: bool = True, **columns: Any) -> str:
        names = ["agent", *columns]
        values = ["reader", *columns.values()]
        marks = ", ".join(f"${n}" for n in range(1, len(values) + 1))
        task_id = await self.database.owner.fetchval(
            f"INSERT INTO lockkeeper.tasks ({', '.join(names)}) VALUES ({marks}) RETURNING id", *values
        )
        if note:
            await self.note([str(task_id)])
        return str(task_id)

    async def cancel(self, task_id: str, note: bool = True) -> None:
        await self.database.owner.execute(
            "UPDATE lockkeeper.tasks SET status = 'cancelled', finished_at = now(), version = version + 1, verb = 'cancel' "
            "WHERE id = $1::text::uuid",
            task_id,
        )
        if note:
            await self.note([task_id])

    async def touch(self, task_id: str, priority: int, note: bool = True) -> None:
        await self.database.owner.execute(
            "UPDATE lockkeeper.tasks SET priority = $2, version = version + 1, verb = 'reprioritise' "
            "WHERE id = $1::text::uuid",
            task_id, priority,
        )  # fmt: skip
        if note:
            await self.note([task_id])

    async def note(self, ids: list[str] | str, channel: str = "lockkeeper_task_changed") -> None:
        payload = ids if isinstance(ids, str) else json.dumps(ids)
        await self.database.owner.execute("SELECT pg_notify($1, $2)", channel, payload)


@pytest.fixture
async def tasks(database: TestDatabase) -> Tasks:
    await database.owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('reader', 'job')")
    return Tasks(database)
