"""Bench `sse`: browsers that one notifier serves at 200 changes a second, and what 2,000 do that come back at once.

The notifier is its own process; the browsers are raw connections of this one, spread over 40 filters (one per agent),
as people look at what is theirs; and as many as one in fifty look at everything and take nothing any more. Every event
carries the time just before its commit, and every browser reads every event: the figure ends when the bytes are in the
browser's hands, its own wait for a turn on this machine included. The browsers' process makes the changes too; what it
takes of a core stands beside what the notifier takes. Those who come back look first at the 40 filters, then each at a
task of its own.
`LOCKKEEPER_BENCH_BROWSERS` and `LOCKKEEPER_BENCH_SECONDS` change the size.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import asyncpg
import psutil
import uvloop
from typing_extensions import override

from deploy.local.folder import free_port
from shared.contract.ownership import role_of
from shared.db.connecting import connect
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = int(os.environ.get("LOCKKEEPER_BENCH_BROWSERS", "5000"))
SECONDS = float(os.environ.get("LOCKKEEPER_BENCH_SECONDS", "20"))
STUCK = BROWSERS // 50
RETURNING = 2000
AGENTS = 40
TASKS = 2000
CHANGES = 200
TICK_SECONDS = 0.1
LIMIT_SECONDS = 0.5

_STEP = re.compile(rb'"step":"at ([0-9.]+)"')


@dataclass
class Seen:
    """What the browsers saw."""

    latencies: list[float] = field(default_factory=list)
    snapshots: int = 0
    bytes: int = 0
    is_counting: bool = False
    refusal: str = ""
    """An answer that is no stream."""


class Browser(asyncio.Protocol):
    """One stream."""

    def __init__(self, seen: Seen, query: str, *, is_stuck: bool = False) -> None:
        self._seen = seen
        self._query = query
        self._is_stuck = is_stuck
        self._is_new = True
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(f"GET /events?{self._query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    @override
    def data_received(self, data: bytes) -> None:
        seen = self._seen
        if self._is_new:
            self._is_new = False
            if not data.startswith(b"HTTP/1.1 200 "):
                seen.refusal = data.decode(errors="replace")
        seen.bytes += len(data)
        if b"event: snapshot" in data:
            seen.snapshots += 1
            if self._is_stuck and self._transport is not None:
                self._transport.pause_reading()
        if seen.is_counting:
            now = time.time()
            seen.latencies += [now - float(each) for each in _STEP.findall(data)]

    def close(self) -> None:
        """Leave without a word."""
        if self._transport is not None:
            self._transport.abort()


async def open_streams(
    seen: Seen, port: int, queries: list[str], at_once: int, *, are_stuck: bool = False
) -> list[Browser]:
    """A stream for each of these filters, so many at a time."""
    loop = asyncio.get_running_loop()
    opened: list[Browser] = []
    for start in range(0, len(queries), at_once):
        made = await asyncio.gather(
            *(loop.create_connection(lambda each=each: Browser(seen, each, is_stuck=are_stuck), "127.0.0.1", port)  # type: ignore[misc]
              for each in queries[start : start + at_once])
        )  # fmt: skip
        opened += [protocol for _, protocol in made]
        await asyncio.sleep(0.02)
    return opened


async def change(owner: asyncpg.Connection, ids: list[Any], seconds: float) -> None:
    """Changes at their pace, each told by a note after its commit."""
    each = round(CHANGES * TICK_SECONDS)
    started = time.monotonic()
    for tick in range(round(seconds / TICK_SECONDS)):
        now = [ids[(tick * each + n) % len(ids)] for n in range(each)]
        await owner.execute(
            "UPDATE lockkeeper.tasks SET step = $2, version = version + 1, verb = 'progress', reason = NULL "
            "WHERE id = ANY ($1::uuid[])",
            now, f"at {time.time():.4f}",
        )  # fmt: skip
        await owner.execute(
            "SELECT pg_notify('lockkeeper_task_changed', to_jsonb($1::text[])::text)", [str(one) for one in now]
        )
        await asyncio.sleep(max(0.0, started + (tick + 1) * TICK_SECONDS - time.monotonic()))


def start(server: PostgresServer, port: int) -> subprocess.Popen[bytes]:
    """The notifier."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")} | {
        "LOCKKEEPER_DATABASE_URL": server.url(role_of("notifier")), "LOCKKEEPER_PORT": str(port),
        "LOCKKEEPER_NOTIFIER_MAX_CLIENTS": str(max(BROWSERS + STUCK, RETURNING) + 100),
    }  # fmt: skip
    return subprocess.Popen([sys.executable, "-m", "services.notifier"], cwd=ROOT, env=environment)


async def listens(port: int) -> None:
    """Wait until the port answers."""
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)


async def snapshots(seen: Seen, number: int) -> float:
    """Seconds until so many snapshots have come."""
    started = time.monotonic()
    async with asyncio.timeout(180):
        while seen.snapshots < number:
            assert not seen.refusal, seen.refusal
            await asyncio.sleep(0.05)
    return time.monotonic() - started


async def statements(owner: asyncpg.Connection) -> int:
    """Transactions of this database so far."""
    await owner.execute("SELECT pg_stat_clear_snapshot()")
    return int(await owner.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))


async def come_back(owner: asyncpg.Connection, server: PostgresServer, queries: list[str]) -> tuple[float, int]:
    """A notifier begins, and all of them come at once: seconds until each has its snapshot, and what was asked."""
    port = free_port()
    notifier = start(server, port)
    try:
        await listens(port)
        seen = Seen()
        before = await statements(owner)
        started = time.monotonic()
        back = await open_streams(seen, port, queries, len(queries))
        await snapshots(seen, len(queries))
        seconds = time.monotonic() - started
    finally:
        notifier.terminate()
        notifier.wait(30)
    # A connection tells the statistics what it did now and then, and when it ends.
    asked = await statements(owner) - before
    for each in back:
        each.close()
    return seconds, asked


async def bench(server: PostgresServer) -> dict[str, Any]:
    """One sitting."""
    owner = await connect(server.url(), name="bench", statement_seconds=None)
    await owner.execute(
        "INSERT INTO lockkeeper.agents (name, target) SELECT 'a' || n, 'j' FROM generate_series(0, 39) n"
    )
    ids = [row["id"] for row in await owner.fetch(
        "INSERT INTO lockkeeper.tasks (agent, status, started_at, lease_expires_at) SELECT 'a' || n % 40, "
        "'processing', now(), now() + interval '1 hour' FROM generate_series(1, $1::int) n RETURNING id",
        TASKS,
    )]  # fmt: skip
    by_agent = [f"agent=a{n % AGENTS}" for n in range(max(BROWSERS, RETURNING))]
    by_task = [f"text={ids[n % TASKS]}&only=tasks" for n in range(RETURNING)]
    port = free_port()
    notifier = start(server, port)
    try:
        await listens(port)
        seen = Seen()
        browsers = await open_streams(seen, port, by_agent[:BROWSERS], 100)
        browsers += await open_streams(seen, port, [""] * STUCK, 100, are_stuck=True)
        opened_seconds = await snapshots(seen, BROWSERS + STUCK)
        memory_before = psutil.Process(notifier.pid).memory_info().rss
        cpu, own_cpu = psutil.Process(notifier.pid).cpu_times(), time.process_time()
        seen.is_counting = True
        await change(owner, ids, SECONDS)
        # Before those who take nothing are let go.
        memory = psutil.Process(notifier.pid).memory_info().rss
        await asyncio.sleep(2)
        seen.is_counting = False
        after, own_after = psutil.Process(notifier.pid).cpu_times(), time.process_time()
        latencies = sorted(seen.latencies)
        for each in browsers:
            each.close()
    finally:
        notifier.terminate()
        notifier.wait(30)
    try:
        same_seconds, same_asked = await come_back(owner, server, by_agent[:RETURNING])
        own_seconds, own_asked = await come_back(owner, server, by_task)
    finally:
        await owner.close()
    at = {
        name: round(latencies[int(part * (len(latencies) - 1))], 3)
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    return {
        "name": "sse", "value": at["p95"], "unit": "s", "limit": LIMIT_SECONDS,
        "ratio": round(at["p95"] / LIMIT_SECONDS, 3),
        "detail": {
            "browsers": BROWSERS, "stuck": STUCK, "changes_per_second": CHANGES, "events": len(latencies), **at,
            "memory_mb": round(memory / 2**20), "memory_before_mb": round(memory_before / 2**20),
            "cpu_seconds_per_second": round((after.user + after.system - cpu.user - cpu.system) / SECONDS, 2),
            "cpu_seconds_per_second_of_the_browsers": round((own_after - own_cpu) / SECONDS, 2),
            "snapshots_after_opening_s": round(opened_seconds, 2), "returning": RETURNING,
            "returned_to_40_filters_s": round(same_seconds, 2), "statements_for_40_filters": same_asked,
            "returned_to_a_task_each_s": round(own_seconds, 2), "statements_for_a_task_each": own_asked,
        },
    }  # fmt: skip


def main() -> None:
    """A server and a notifier for the bench, and away with them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, max(BROWSERS, RETURNING) * 2 + 1000), most))
    server = PostgresServer.create(18)
    try:
        asyncio.run(server.make_template())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(bench(server))), flush=True)
    finally:
        server.destroy()


if __name__ == "__main__":
    main()
