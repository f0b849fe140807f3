"""The totals equal the truth, whatever happened and in whatever order it was committed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from services.console.loops import Count
from services.console.storage.totals import TotalsStorage
from shared.db.connecting import connect
from shared.db.invariants import violations
from shared.db.pool import Database
from tests.conftest import TestDatabase

NOTHING: list[Any] = [None] * 8
EXACT = ("enqueued", "processing", "completed", "failed", "cancelled", "oldest_waiting_at", "input_tokens",
         "output_tokens", "cache_read_tokens", "cache_write_tokens", "llm_cost", "compute_cost", "currency",
         "llm_cost_pending", "compute_cost_pending", "attempts")  # fmt: skip

STAGE = """
WITH made AS (
    INSERT INTO lockkeeper.tasks (agent, customer, status, created_at, started_at, finished_at, lease_expires_at, confidence)
    SELECT (ARRAY['a', 'b', 'c'])[1 + n % 3], (ARRAY['north', 'south', NULL])[1 + n % 7 % 3], s.status,
           now() - n * interval '17 minutes', now() - n * interval '17 minutes',
           CASE WHEN s.status IN ('completed', 'failed', 'cancelled')
                THEN now() - n * interval '17 minutes' + (n % 97 + 1) * interval '1.7 seconds' END,
           CASE WHEN s.status = 'processing' THEN now() + interval '1 hour' END, (n % 100) / 100.0
      FROM generate_series(1, $1::int) n
     CROSS JOIN LATERAL (SELECT (ARRAY['completed', 'completed', 'failed', 'enqueued', 'cancelled', 'processing'])[1 + n % 6]
                         AS status) s
    RETURNING id, agent, status, created_at
)
INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at, input_tokens,
                                      output_tokens, llm_cost, compute_cost)
SELECT gen_random_uuid(), id, agent, 1, 'completed', created_at, created_at + interval '1 second', 1000, 200,
       CASE WHEN agent <> 'c' THEN 0.0125 END, CASE WHEN agent = 'a' THEN 0.5 END
  FROM made WHERE status IN ('completed', 'failed')
"""


@pytest.fixture
async def pool(database: TestDatabase) -> AsyncIterator[Database]:
    opened = await database.open("console")
    yield opened
    await opened.close()


async def settle(pool: Database, **options: float) -> None:
    """Count until nothing is left to count."""
    loop = Count(TotalsStorage(pool), walk_every_seconds=0, **options)
    while await loop.run_once():
        pass


async def unsound(owner: asyncpg.Connection) -> list[Any]:
    """Where cells and counted tasks differ; the staged rows keep no other invariant."""
    return [each for each in await violations(owner) if each.name == "totals_add_up"]


async def both(owner: asyncpg.Connection, *arguments: Any) -> tuple[Any, Any]:
    """The totals of a filter counted here and now, and from the cells."""
    few = await owner.fetchrow("SELECT * FROM lockkeeper.summarise_tasks($1, $2, $3, $4, $5, $6, $7, $8)", *arguments)
    many = await owner.fetchrow(
        "SELECT * FROM lockkeeper.summarise_tasks($1, $2, $3, $4, $5, $6, $7, $8, 0)", *arguments
    )
    assert few is not None and many is not None and few["is_exact"]
    return few, many


def agree(few: Any, many: Any) -> None:
    for name in EXACT:
        # No token at all is no row to add up in one, a sum of nothing in the other.
        assert (few[name] or 0 if name.endswith("_tokens") else few[name]) == many[name], name
    assert few["confidence"] == pytest.approx(many["confidence"])
    for name in ("median_seconds", "p95_seconds"):
        assert few[name] == many[name] if few[name] is None else few[name] == pytest.approx(many[name], rel=0.11)


async def test_totals_equal_the_truth_under_every_filter(database: TestDatabase, pool: Database) -> None:
    owner = database.owner
    await owner.execute(STAGE, 600)
    await settle(pool)
    assert await unsound(owner) == []
    now = datetime.now(UTC)
    ranges: list[tuple[datetime | None, datetime | None]] = [
        (None, None), (now - timedelta(days=3, minutes=7), None), (None, now - timedelta(days=1, minutes=3)),
        (now - timedelta(hours=30, minutes=11), now - timedelta(hours=3, minutes=5)),
        (now - timedelta(minutes=200), now - timedelta(minutes=100)), (now - timedelta(minutes=40), now),
        (now - timedelta(days=4), now - timedelta(days=2)), (now - timedelta(hours=5), now - timedelta(hours=4, minutes=50)),
    ]  # fmt: skip
    for since, until in ranges:
        for statuses, agents, customers in (
            (None, None, None), (["completed", "failed"], None, None), (None, ["a", "c"], None),
            (None, None, ["north"]), (["enqueued"], ["b"], ["south", "north"]),
        ):  # fmt: skip
            few, many = await both(owner, statuses, agents, customers, since, until, None, None, None)
            if few["enqueued"] + few["completed"] + few["failed"] + few["cancelled"] + few["processing"]:
                agree(few, many)


async def test_every_change_moves_the_totals_by_itself(database: TestDatabase, pool: Database) -> None:
    """Statuses, prices, deletions and a commit that came late; counted twice changes nothing."""
    owner = database.owner
    await owner.execute(STAGE, 60)
    await settle(pool)
    late = await connect(database.url(), name="late")
    transaction = late.transaction()
    await transaction.start()
    await late.execute("INSERT INTO lockkeeper.tasks (agent, created_at) VALUES ('a', now() - interval '2 days')")
    await owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'cancelled', finished_at = now(), version = version + 1, verb = 'cancel' "
        "WHERE status = 'enqueued'"
    )
    await owner.execute("UPDATE lockkeeper.task_attempts SET compute_cost = 0.25 WHERE agent = 'b'")
    await owner.execute("DELETE FROM lockkeeper.tasks WHERE status = 'failed' AND agent = 'a'")
    await settle(pool)
    await settle(pool)
    agree(*await both(owner, *NOTHING))
    await transaction.commit()
    await late.close()
    few, many = await both(owner, *NOTHING)
    assert few["enqueued"] == 1 and many["enqueued"] == 0, "not seen yet: the walk finds it"
    await settle(pool)
    agree(*await both(owner, *NOTHING))
    assert await unsound(owner) == []


async def test_what_changes_is_counted_without_the_walk(database: TestDatabase, pool: Database) -> None:
    owner = database.owner
    loop = Count(TotalsStorage(pool), walk_every_seconds=1e9)
    await loop.run_once()
    await loop.run_once()
    task_id = await owner.fetchval("INSERT INTO lockkeeper.tasks (agent, status) VALUES ('a', 'enqueued') RETURNING id")
    await loop.run_once()
    assert (await both(owner, *NOTHING))[1]["enqueued"] == 1
    await owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'cancelled', finished_at = now(), version = version + 1, verb = 'cancel'"
    )
    await loop.run_once()
    assert (await both(owner, *NOTHING))[1]["cancelled"] == 1
    attempt = uuid.uuid4()
    await owner.execute(
        "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at, llm_cost) "
        "VALUES ($1, $2, 'a', 1, 'cancelled', now(), now(), 0.5)",
        attempt, task_id,
    )  # fmt: skip
    await owner.execute(
        "INSERT INTO lockkeeper.cost_entries (source, record_id, attempt_id, task_id, kind, amount) "
        "VALUES ('trace', 'r', $1, $2, 'llm', 0.5)",
        attempt, task_id,
    )  # fmt: skip
    await loop.run_once()
    few, many = await both(owner, *NOTHING)
    agree(few, many)
    assert str(many["llm_cost"]) == "0.5"


async def test_two_consoles_never_count_at_once(database: TestDatabase, pool: Database) -> None:
    owner = database.owner
    await owner.execute(STAGE, 30)
    other = TotalsStorage(pool)
    async with pool.transaction() as connection:
        assert await other.take_counting(connection) is not None
        assert not await Count(TotalsStorage(pool), walk_every_seconds=0).run_once()
        assert await owner.fetchval("SELECT count(*) FROM lockkeeper.task_counted") == 0
    await settle(pool)
    assert await owner.fetchval("SELECT count(*) FROM lockkeeper.task_counted") == 30
