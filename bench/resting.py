"""Benches of a system with little to do: `python -m bench.resting latency idle`.

`latency`: one task every 20 ms, from its commit to the call of the runner, through listener, claim and submission.
`idle`: the statements that one dispatcher sends while nothing waits. Both run `bench.dispatcher`, a real process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg

from bench.queue import ROOT, QueueBench, line
from shared.client import enqueue
from shared.contract.ownership import role_of

LATENCY_SECONDS, EVERY_SECONDS = 15.0, 0.02
IDLE_SECONDS = 40.0
TROUBLE = 30.0


class Dispatcher:
    """A dispatcher process, heard by the channel that it listens on."""

    def __init__(self, bench: QueueBench) -> None:
        self._bench = bench
        self._said = Path(tempfile.mkdtemp()) / "calls"
        self._process: subprocess.Popen[bytes] | None = None

    async def open(self) -> None:
        """Start it and wait until it hears."""
        self._start()
        hears = "SELECT EXISTS (SELECT FROM lockkeeper.replicas WHERE info ->> 'listener' = 'live') -- bench_looks"
        async with asyncio.timeout(TROUBLE):
            while not await self._bench.owner.fetchval(hears):
                await asyncio.sleep(0.2)

    def _start(self) -> None:
        url = self._bench.server.url(role_of("dispatcher"))
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.dispatcher"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said,
                env={**os.environ, "PYTHONPATH": str(ROOT), "LOCKKEEPER_DATABASE_URL": url},
            )  # fmt: skip

    def close(self) -> dict[str, float]:
        """End it; when the runner was asked for each task."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(TROUBLE)
        calls = [row.split() for row in self._said.read_text(encoding="utf-8").splitlines()]
        return {row[1]: float(row[0]) for row in calls if len(row) == 2 and row[0][0].isdigit()}


async def latency(bench: QueueBench) -> None:
    """From commit to the call of the runner."""
    await bench.reset()
    dispatcher = Dispatcher(bench)
    await dispatcher.open()
    caller = await asyncpg.connect(bench.server.url(role_of("console")))
    commits: dict[str, float] = {}
    started = time.perf_counter()
    for number in range(int(LATENCY_SECONDS / EVERY_SECONDS)):
        await asyncio.sleep(max(0.0, started + number * EVERY_SECONDS - time.perf_counter()))
        task = await enqueue(caller, agent="a0")
        commits[str(task)] = time.time()
    await caller.close()
    await asyncio.sleep(3)
    called = dispatcher.close()
    waits = sorted((called[task] - at) * 1e3 for task, at in commits.items() if task in called)
    p50, p95, p99 = (waits[min(len(waits) - 1, int(part * len(waits)))] for part in (0.5, 0.95, 0.99))
    line(
        "latency",
        p50,
        "ms p50",
        None,
        p95=round(p95, 2),
        p99=round(p99, 2),
        tasks=len(waits),
        lost=len(commits) - len(waits),
    )


async def idle(bench: QueueBench) -> None:
    """Statements a second of one dispatcher."""
    await bench.reset(200, max_concurrent_tasks=5)
    dispatcher = Dispatcher(bench)
    await dispatcher.open()
    await asyncio.sleep(3)
    before = (await bench.statements(), await bench.wal_bytes(), bench.postgres_seconds())
    await asyncio.sleep(IDLE_SECONDS)
    after = (await bench.statements(), await bench.wal_bytes(), bench.postgres_seconds())
    dispatcher.close()
    statements, wal, postgres = ((late - early) / IDLE_SECONDS for early, late in zip(before, after, strict=True))
    line(
        "idle",
        statements,
        "statements/s",
        None,
        wal_bytes_per_second=round(wal),
        postgres_percent=round(postgres * 100, 2),
    )


async def main(bench: QueueBench, names: list[str]) -> None:
    """Run the named benches on one server."""
    benches = {"latency": latency, "idle": idle}
    try:
        await bench.open()
        for name in names or list(benches):
            await benches[name](bench)
    finally:
        await bench.close()


if __name__ == "__main__":
    asyncio.run(main(QueueBench(), sys.argv[1:]))
