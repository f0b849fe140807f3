"""Benches of enqueueing: `python -m bench.enqueueing enqueue_bulk enqueue_single`.

Bulk is 20,000 tasks in one call and one transaction; single is 2,000 of them one by one from ten producers, a commit
each. Both go through `shared.client`, beside the limit of the same minute: `unnest` into a bare table, a thousand at a
time and in one transaction too, and pgbench inserting into it.

A task in bulk costs Postgres 7 to 10 us and the caller 5 to 7, two thirds of which pass while Postgres works (it reads
the COPY as it comes); the bare row is 5 to 7 in all. By the one statement that can say everything of a task it was 18,
one after the other.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

import asyncpg

from bench.queue import QueueBench, line
from shared.client import NewTask, enqueue, enqueue_many
from shared.contract.ownership import role_of

BULK, CHUNK = 20_000, 1000
SINGLE, PRODUCERS = 2_000, 10
ROUNDS = 3
ONE = "INSERT INTO jobs (priority, agent, payload) VALUES (0, 1, '{\"i\": 1}');\n"


async def enqueue_bulk(bench: QueueBench) -> None:
    """A thousand tasks in one statement."""
    found: list[tuple[float, float, float, float]] = []
    for _ in range(ROUNDS):
        limit = await _unnest(bench)
        await bench.reset()
        caller = await asyncpg.connect(bench.server.url(role_of("console")))
        wal, postgres, own, started = (
            await bench.wal_bytes(),
            bench.postgres_seconds(),
            time.process_time(),
            time.perf_counter(),
        )
        await enqueue_many(caller, [NewTask(agent="a0", input={"i": n}) for n in range(BULK)])
        rate = BULK / (time.perf_counter() - started)
        own = (time.process_time() - own) / BULK * 1e6
        wal = (await bench.wal_bytes() - wal) / BULK
        await caller.close()
        await asyncio.sleep(0.3)
        found.append((rate, limit, own, wal))
        postgres = (bench.postgres_seconds() - postgres) / BULK * 1e6
    _say("enqueue_bulk", found, postgres_us=round(postgres, 1))


async def enqueue_single(bench: QueueBench) -> None:
    """One task a transaction."""
    found: list[tuple[float, float, float, float]] = []
    callers = [await asyncpg.connect(bench.server.url(role_of("console"))) for _ in range(PRODUCERS)]
    for _ in range(ROUNDS):
        limit = await asyncio.to_thread(bench.pgbench, ONE, PRODUCERS, SINGLE // PRODUCERS)
        await bench.reset()
        wal, own, started = await bench.wal_bytes(), time.process_time(), time.perf_counter()
        await asyncio.gather(*(_produce(each, SINGLE // PRODUCERS) for each in callers))
        rate = SINGLE / (time.perf_counter() - started)
        own = (time.process_time() - own) / SINGLE * 1e6
        found.append((rate, limit, own, (await bench.wal_bytes() - wal) / SINGLE))
    for each in callers:
        await each.close()
    _say("enqueue_single", found)


async def _produce(connection: asyncpg.Connection, count: int) -> None:
    for number in range(count):
        await enqueue(connection, agent="a0", input={"i": number})


async def _unnest(bench: QueueBench) -> float:
    """Rows a second into the bare table, a thousand at a time, by the same driver."""
    plain = await asyncpg.connect(bench.server.url(database="plain"))
    await plain.execute("TRUNCATE jobs RESTART IDENTITY")
    started = time.perf_counter()
    async with plain.transaction():
        for first in range(0, BULK, CHUNK):
            rows = range(first, first + CHUNK)
            await plain.execute(
                "INSERT INTO jobs (priority, agent, payload) SELECT * FROM unnest($1::int[], $2::int[], $3::jsonb[])",
                [0] * CHUNK, [n % 200 for n in rows], [f'{{"i": {n}}}' for n in rows],
            )  # fmt: skip
    rate = BULK / (time.perf_counter() - started)
    await plain.close()
    return rate


def _say(name: str, found: list[tuple[float, float, float, float]], **detail: float) -> None:
    rate, limit, own, wal = (statistics.median(column) for column in zip(*found, strict=True))
    ratios = [round(each[0] / each[1], 3) for each in found]
    line(name, rate, "tasks/s", limit, ratios=ratios, caller_us=round(own, 1), wal_bytes=round(wal), **detail)


async def main(bench: QueueBench, names: list[str]) -> None:
    """Run the named benches on one server."""
    benches = {"enqueue_bulk": enqueue_bulk, "enqueue_single": enqueue_single}
    try:
        await bench.open()
        for name in names or list(benches):
            await benches[name](bench)
    finally:
        await bench.close()


if __name__ == "__main__":
    asyncio.run(main(QueueBench(), sys.argv[1:]))
