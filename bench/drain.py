"""Benches of draining a queue: `python -m bench.drain NAME…`.

`drain_1`, `drain_2` (one and two processes), `dirty` (a million finished rows), `backlog` (5,000 urgent behind
500,000), `snapshot` (another session's open snapshot), `limited_1`, `limited_2`, `limited_8` (200 agents with limit 5
and 10 ms of work a task), `tokens_2` (the same with token budgets), `hot` (the first quarter of the tasks all wait for
one agent of those 200).

What stands in the way, seen in the server's own statistics on two cores:

    drain       58 us of CPU a task, 47 of them Postgres', where the limit has 35: seven row versions (task 3, attempt
                2, event 2) where it has three, thirteen index entries where it has five, 2.2 kB of WAL. None of them
                alone is dear: without the list's index, the one of what is to be priced, the one of an attempt's
                number, the log's key or the triggers it is within 2 us of the same. To skip what others hold, a claim
                locks each row before it changes it, and so does a settlement: a task's page is written four times
    limited_8   the eight share 1,000 slots, so that a claim finds 60 to 100 tasks where one of two processes finds 100
                to 160, and half of the claims find that others were faster. Who waits does so for a core, then for the
                WAL's flush and the last pages of the indexes by id; nobody waits for an agent's row
    hot         a slot is taken again after 10 ms of work, a settling commit (1.6 ms) and a claim of who was named
                (1.4): 1.4 in all; on a system at rest half of these is the way there and back, and a third of a
                millisecond each the flush of the WAL
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from bench.queue import QueueBench, line

BATCH = 1000
LIMITED_BATCH = 200
"""Where limits bind, no claim takes all that may run at once: the others would wait until it is settled."""
WAITING = "status = 'enqueued' AND NOT deferred"
RUNNING = "status = 'processing'"
COUNT = 20_000
ROUNDS = 3


class Drained:
    """What one drain cost."""

    def __init__(
        self, seconds: float, postgres: float, wal: float, statements: float, accounts: list[dict[str, Any]]
    ) -> None:
        self.starts = sum(len(each["starts"]) for each in accounts)
        self.rate = self.starts / seconds
        self.seconds = seconds
        self.postgres_us = postgres / self.starts * 1e6
        self.worker_us = sum(each["cpu"] for each in accounts) / self.starts * 1e6
        self.wal = wal / self.starts
        self.statements = statements / self.starts
        self.spans = [tuple(span) for each in accounts for span in each["spans"]]

    @property
    def worst_overlap(self) -> int:
        """The most that one agent ran at once, by the clocks of the workers."""
        steps = sorted(
            [(start, 1, agent) for agent, start, _ in self.spans] + [(end, -1, agent) for agent, _, end in self.spans]
        )
        now: defaultdict[str, int] = defaultdict(int)
        worst = 0
        for _, step, agent in steps:
            now[agent] += step
            worst = max(worst, now[agent])
        return worst


async def drain(
    bench: QueueBench,
    processes: int,
    *,
    pending: str = "",
    sleep_ms: float = 0,
    batch: int = BATCH,
    used_tokens: int = 0,
) -> Drained:
    """Run workers until nothing (that `pending` names) waits or runs."""
    workers = [bench.worker(batch, sleep_ms, used_tokens) for _ in range(processes)]
    for worker in workers:
        assert worker.stdout is not None
        await asyncio.to_thread(worker.stdout.readline)
    statements = await bench.statements()
    before = (bench.postgres_seconds(), await bench.wal_bytes(), time.perf_counter())
    for worker in workers:
        _say(worker, "GO")
    # Along the small indexes of what waits and runs: looking at the whole table was a good part of what is measured.
    await bench.owner.execute("SET enable_seqscan = off")
    some = [f"EXISTS (SELECT FROM lockkeeper.tasks WHERE {each} {pending})" for each in (WAITING, RUNNING)]
    while await bench.owner.fetchval(f"SELECT {' OR '.join(some)} -- bench_looks"):
        await asyncio.sleep(0.02)
    seconds = time.perf_counter() - before[2]
    wal = await bench.wal_bytes() - before[1]
    statements = await bench.statements() - statements
    accounts = await asyncio.gather(*(asyncio.to_thread(_stop, worker) for worker in workers))
    await asyncio.sleep(0.3)  # the postmaster has reaped the workers' backends
    return Drained(seconds, bench.postgres_seconds() - before[0], wal, statements, list(accounts))


def _say(worker: subprocess.Popen[str], word: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(word + "\n")
    worker.stdin.flush()


def _stop(worker: subprocess.Popen[str]) -> dict[str, Any]:
    worker.terminate()
    out, _ = worker.communicate(timeout=30)
    return dict(json.loads(out.strip().splitlines()[-1]))


async def rounds(
    bench: QueueBench, name: str, fill: Callable[[], Awaitable[None]], processes: int, times: int = ROUNDS, **how: Any
) -> None:
    """Medians of some rounds, each beside the limit of its own minute."""
    found: list[tuple[float, Drained]] = []
    for _ in range(times):
        limit = await bench.limit()
        await fill()
        found.append((limit, await drain(bench, processes, **how)))
    median = statistics.median
    limit = median(limit for limit, _ in found)
    line(
        name, median(each.rate for _, each in found), "tasks/s", limit,
        ratios=[round(each.rate / limit, 3) for limit, each in found],
        cpu_us=round(median(each.postgres_us + each.worker_us for _, each in found), 1),
        postgres_us=round(median(each.postgres_us for _, each in found), 1),
        worker_us=round(median(each.worker_us for _, each in found), 1),
        wal_bytes=round(median(each.wal for _, each in found)),
        statements=round(median(each.statements for _, each in found), 3),
        seconds=round(median(each.seconds for _, each in found), 3),
        worst_overlap=max(each.worst_overlap for _, each in found) if found[0][1].spans else None,
    )  # fmt: skip


async def drained(bench: QueueBench, processes: int) -> None:
    """An open queue of no-op tasks."""

    async def fill() -> None:
        await bench.reset()
        await bench.fill(COUNT)

    await rounds(bench, f"drain_{processes}", fill, processes)


async def dirty(bench: QueueBench) -> None:
    """The same with a million finished rows in the table."""
    await bench.reset()
    await bench.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, status, finished_at, attempt) "
        "SELECT 'a0', 'completed', now(), 1 FROM generate_series(1, 1000000)",
        timeout=600,
    )
    await bench.owner.execute("CHECKPOINT")
    await rounds(bench, "dirty", lambda: bench.fill(COUNT), 1)


async def backlog(bench: QueueBench) -> None:
    """Urgent tasks behind half a million others: seconds from the first claim to the last settlement of one."""
    seconds: list[float] = []
    for _ in range(ROUNDS):
        await bench.reset()
        await bench.fill(500_000, priority=10)
        await bench.fill(5_000, priority=90)
        await bench.owner.execute("CHECKPOINT")
        found = await drain(bench, 1, pending="AND agent = 'a0' AND priority = 90")
        seconds.append(
            await bench.owner.fetchval(
                "SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 "
                "FROM lockkeeper.tasks WHERE agent = 'a0' AND priority = 90"
            )
        )
    line(
        "backlog", statistics.median(seconds), "s", None,
        seconds=[round(each, 3) for each in seconds], started_meanwhile=found.starts, wal_bytes=round(found.wal),
    )  # fmt: skip


async def snapshot(bench: QueueBench) -> None:
    """Another session holds a snapshot open all the time: nothing that a task leaves behind can be cleared away."""
    holder = await asyncpg.connect(bench.server.url())
    async with holder.transaction(isolation="repeatable_read"):
        # A snapshot and no lock, so that the tables can be emptied under it.
        await holder.fetchval("SELECT 1")

        async def fill() -> None:
            await bench.reset()
            await bench.fill(COUNT)

        await rounds(bench, "snapshot", fill, 1)
    await holder.close()


async def limited(bench: QueueBench, processes: int, name: str, used_tokens: int = 0, **settings: Any) -> None:
    """Two hundred agents, each with its own limit. Tokens that were used weigh for a minute, so each task uses one."""

    async def fill() -> None:
        await bench.reset(200, **settings)
        await bench.fill(COUNT, 200, estimated_tokens=1000)

    how = {"sleep_ms": 10, "batch": LIMITED_BATCH, "used_tokens": used_tokens}
    await rounds(bench, f"{name}_{processes}", fill, processes, **how)


async def hot(bench: QueueBench) -> None:
    """One agent with far more work than its limit admits stands first in line: what becomes of it and of the others."""
    tasks, of_hot = 8_000, 2_000
    await bench.reset(200, max_concurrent_tasks=5)
    others = await _spread(bench, tasks - of_hot)
    await bench.reset(200, max_concurrent_tasks=5)
    await bench.fill(of_hot)
    together = await _spread(bench, tasks - of_hot)
    spans = together.spans
    first = min(start for _, start, _ in spans)
    ends = {is_hot: [end - first for agent, _, end in spans if (agent == "a0") == is_hot] for is_hot in (True, False)}
    alone = max(end for _, _, end in others.spans) - min(start for _, start, _ in others.spans)
    ideal = len(ends[True]) * 0.01 / 5
    line(
        "hot", max(ends[True]) / ideal, "x its ideal", None,
        hot_tasks=len(ends[True]), hot_seconds=round(max(ends[True]), 3), ideal_seconds=ideal,
        others=len(ends[False]), others_last_seconds=round(max(ends[False]), 3), others_alone_seconds=round(alone, 3),
        others_delayed=round(max(ends[False]) / alone - 1, 3), worst_overlap=together.worst_overlap,
    )  # fmt: skip


async def _spread(bench: QueueBench, count: int) -> Drained:
    await bench.fill(count, 200)
    return await drain(bench, 2, sleep_ms=10)


BENCHES: dict[str, Callable[[QueueBench], Awaitable[None]]] = {
    "drain_1": lambda bench: drained(bench, 1),
    "drain_2": lambda bench: drained(bench, 2),
    "dirty": dirty,
    "backlog": backlog,
    "snapshot": snapshot,
    "limited_1": lambda bench: limited(bench, 1, "limited", max_concurrent_tasks=5),
    "limited_2": lambda bench: limited(bench, 2, "limited", max_concurrent_tasks=5),
    "limited_8": lambda bench: limited(bench, 8, "limited", max_concurrent_tasks=5),
    "hot": hot,
    "tokens_2": lambda bench: limited(bench, 2, "tokens", used_tokens=1, max_tpm=4000),
}


async def main(bench: QueueBench, names: list[str]) -> None:
    """Run the named benches, or all of this module, on one server."""
    try:
        await bench.open()
        for name in names or list(BENCHES):
            await BENCHES[name](bench)
    finally:
        await bench.close()


if __name__ == "__main__":
    asyncio.run(main(QueueBench(), sys.argv[1:]))
