"""Finished tasks go once they were kept long enough: whole, in nobody's way, and without a figure of the ledger changing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from services.console.loops import Count
from services.console.storage.totals import TotalsStorage
from services.cost_attributor.storage import CostStorage
from services.sweeper.loops import RemoveLoop
from services.sweeper.settings import SweeperSettings
from services.sweeper.storage import SweeperStorage
from shared.db.connecting import connect
from shared.db.invariants import violations
from shared.db.pool import Database
from shared.db.statements import load
from shared.testing.rows import make_agent, make_tasks
from tests.conftest import TestDatabase
from tests.support.gates import Clock, Gates
from tests.support.hands import Hands

SQL = load("services.sweeper")
COSTS = load("services.console.storage", "costs.sql")
THE_OLDEST = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
KEEP = 62

STAGE = """
WITH task AS (
    INSERT INTO lockkeeper.tasks (agent, customer, status, created_at, finished_at, attempt, version, verb, result)
    SELECT 'parser', 'acme', 'completed', at, at + interval '1 hour', 1, 3, 'complete', '{"n": 1}'
      FROM (SELECT lockkeeper.clock() - $2 * interval '1 day' + n * interval '1 second' AS at
              FROM generate_series(1, $1::int) n) made
    RETURNING id, agent, customer, created_at, finished_at
), attempt AS (
    INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at, llm_cost,
                                          input_tokens, output_tokens, cost_status, run_id)
    SELECT lockkeeper.uuid7(), id, agent, 1, 'completed', created_at, finished_at, 0.25, 10, 5, 'final',
           row_number() OVER () + 1000 * $2
      FROM task
    RETURNING id, task_id, agent, leased_at
), event AS (
    INSERT INTO lockkeeper.task_events (task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor)
    SELECT t.id, v.version, t.created_at, v.verb, v.status, 1, t.agent, v.running, 0, 'stage'
      FROM task t, (VALUES (2, 'claim', 'processing', 1), (3, 'complete', 'completed', 0)) v (version, verb, status, running)
), result AS (
    INSERT INTO lockkeeper.attempt_results (attempt_id, result) SELECT id, '{"n": 1}' FROM attempt
), line AS (
    INSERT INTO lockkeeper.cost_entries (source, record_id, attempt_id, task_id, kind, model, input_tokens, output_tokens,
                                         amount, priced_by, agent, customer, usage_start_at)
    SELECT 'trace', a.id::text, a.id, a.task_id, 'llm', 'm', 10, 5, 0.25, 'trace', a.agent, 'acme', a.leased_at
      FROM attempt a
), spent AS (
    INSERT INTO lockkeeper.spending AS s (scope, name, day, llm_cost)
    SELECT 'agent', agent, (leased_at AT TIME ZONE 'UTC')::date, 0.25 * count(*) FROM attempt GROUP BY 1, 2, 3
        ON CONFLICT (scope, name, day) DO UPDATE SET llm_cost = s.llm_cost + excluded.llm_cost
)
SELECT id FROM task ORDER BY created_at
"""

FIGURES = {
    "lines": "SELECT date_trunc('month', usage_start_at), count(*), sum(amount), sum(input_tokens) "
    "FROM lockkeeper.cost_lines WHERE agent = 'parser' AND customer = 'acme' GROUP BY 1 ORDER BY 1",
    "spending": "SELECT * FROM lockkeeper.spending ORDER BY scope, name, day",
    "budgets": "SELECT scope, name, spent_today, spent_this_month, cost_left FROM lockkeeper.budget_state",
}


@pytest.fixture
async def pool(database: TestDatabase) -> AsyncIterator[Database]:
    await make_agent(database.owner, monthly_budget=100)
    opened = await database.open("sweeper")
    yield opened
    await opened.close()


async def stage(owner: asyncpg.Connection, count: int, days: int) -> list[UUID]:
    """Completed tasks of so many days ago, with all that they leave behind."""
    return [row["id"] for row in await owner.fetch(STAGE, count, days)]


async def remove(pool: Database) -> int:
    """One walk over everything; how many tasks went."""
    storage, after, gone = SweeperStorage(pool, "s"), THE_OLDEST, 0
    while (batch := await storage.remove_tasks(KEEP, after))["looked_at"]:
        after = (batch["last_created_at"], batch["last_id"])
        gone += batch["tasks"]
    return gone


async def left(owner: asyncpg.Connection) -> list[int]:
    """Rows that tasks have, by table."""
    return [
        await owner.fetchval(f"SELECT count(*) FROM lockkeeper.{table}")
        for table in ("tasks", "task_attempts", "task_events", "attempt_results", "recovered_results")
    ]


async def test_what_was_kept_long_enough_goes_with_all_that_is_its(database: TestDatabase, pool: Database) -> None:
    old = await stage(database.owner, 2500, 63)
    await database.owner.execute(
        "INSERT INTO lockkeeper.recovered_results (attempt_id) SELECT id FROM lockkeeper.task_attempts LIMIT 1"
    )
    kept = await stage(database.owner, 3, 61)
    assert await remove(pool) == len(old)
    assert await left(database.owner) == [3, 3, 6, 3, 0]
    assert await database.owner.fetchval("SELECT array_agg(id ORDER BY created_at) FROM lockkeeper.tasks") == kept
    assert await violations(database.owner) == []


async def test_no_figure_of_the_ledger_changes_and_totals_are_of_the_tasks_that_are_left(
    database: TestDatabase, pool: Database
) -> None:
    for days, count in ((200, 4), (90, 5), (40, 6), (1, 7)):
        await stage(database.owner, count, days)
    console = await database.open("console")
    counting = Count(TotalsStorage(console), walk_every_seconds=0)
    by_month: list[Any] = ["month", "UTC", *[None] * 8]
    since = await database.owner.fetchval("SELECT lockkeeper.clock() - interval '62 days'")

    async def figures() -> dict[str, Any]:
        while await counting.run_once():
            pass
        page = await console.fetch(COSTS["sum_costs"].sql, *by_month[:5], since, *by_month[6:])
        return {"page": page} | {name: await database.owner.fetch(sql) for name, sql in FIGURES.items()}

    before = await figures()
    assert await remove(pool) == 9
    assert await figures() == before
    counted = await database.owner.fetchval(
        "SELECT sum(tasks) FROM lockkeeper.task_totals WHERE grain = 'day' AND agent = '*' AND customer = '*'"
    )
    assert counted == 13
    assert await violations(database.owner) == []
    await console.close()


async def test_claims_ends_and_new_tasks_do_not_wait_for_a_removal(database: TestDatabase, pool: Database) -> None:
    await stage(database.owner, 50, 100)
    await make_tasks(database.owner, 3)
    async with Hands(database, "a", Gates(Clock())) as hands, pool.transaction() as removal, asyncio.timeout(15):
        batch = await removal.fetchrow(SQL["remove_tasks"].sql, KEEP, *THE_OLDEST)
        assert batch is not None and batch["tasks"] == 50
        leased = await hands.claim(2)
        await hands.succeed([each.attempt_id for each in leased])
        await make_tasks(database.owner, 1)
        assert len(await hands.claim(10)) == 2
    assert await left(database.owner) == [4, 4, 6, 0, 0]


async def test_a_task_that_somebody_holds_is_left_for_the_next_walk(database: TestDatabase, pool: Database) -> None:
    held, *_ = await stage(database.owner, 3, 100)
    holder = await connect(database.url(), name="holder")
    async with holder.transaction(), asyncio.timeout(15):
        await holder.execute("SELECT FROM lockkeeper.tasks WHERE id = $1 FOR SHARE", held)
        assert await remove(pool) == 2
    assert await remove(pool) == 1
    await holder.close()


async def test_a_family_goes_whole_or_not_at_all(database: TestDatabase, pool: Database) -> None:
    parent, *_ = await stage(database.owner, 1, 100)
    children = await stage(database.owner, 3, 99)
    await database.owner.execute("UPDATE lockkeeper.tasks SET gather = 'all_ended' WHERE id = $1", parent)
    await database.owner.execute(
        "UPDATE lockkeeper.tasks SET parent_task_id = $1 WHERE id = ANY ($2)", parent, children
    )
    await database.owner.execute("DELETE FROM lockkeeper.task_attempts WHERE task_id = $1", parent)
    late = "UPDATE lockkeeper.tasks SET finished_at = lockkeeper.clock() - $2 * interval '1 day' WHERE id = $1"
    await database.owner.execute(late, children[2], 10)
    assert await remove(pool) == 0
    await database.owner.execute(late, children[2], 70)
    assert await remove(pool) == 4
    assert (await left(database.owner))[:3] == [0, 0, 0]


@pytest.mark.parametrize("owed", ["cost_status = 'pending'", "cancel_requested_at = now()"])
async def test_what_is_still_owed_keeps_a_task(database: TestDatabase, pool: Database, owed: str) -> None:
    await stage(database.owner, 2, 100)
    await database.owner.execute(
        f"UPDATE lockkeeper.task_attempts SET {owed} WHERE id = (SELECT min(id::text)::uuid FROM lockkeeper.task_attempts)"
    )
    assert await remove(pool) == 1
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET cost_status = 'unknown', cancel_confirmed_at = now()"
    )
    assert await remove(pool) == 1


@pytest.mark.parametrize("status", ["enqueued", "processing"])
async def test_the_database_removes_no_task_that_has_not_ended(
    database: TestDatabase, pool: Database, status: str
) -> None:
    lease = datetime.now(UTC) if status == "processing" else None
    await make_tasks(database.owner, 1, status=status, lease_expires_at=lease)
    async with pool.transaction() as connection:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await connection.execute("DELETE FROM lockkeeper.tasks")
    assert refused.value.sqlstate == "LK001"


async def test_a_shared_run_is_not_billed_again_to_those_that_are_left(database: TestDatabase, pool: Database) -> None:
    """Else whoever is left of it would be given all of it, and the ledger would count a part twice."""
    await stage(database.owner, 1, 100)
    await stage(database.owner, 1, 50)
    await database.owner.execute("UPDATE lockkeeper.task_attempts SET run_id = 7, pack_id = $1", UUID(int=7))
    costs = await database.open("cost_attributor")
    window = await database.owner.fetchrow("SELECT now() - interval '120 days', now()")
    assert window is not None
    assert len(await CostStorage(costs, "c").list_run_shares(*window)) == 2
    assert await remove(pool) == 1
    assert await CostStorage(costs, "c").list_run_shares(*window) == []
    await costs.close()


async def test_a_walk_rests_between_its_batches_and_begins_anew(database: TestDatabase, pool: Database) -> None:
    await stage(database.owner, 1500, 100)
    settings = SweeperSettings(remove_seconds=7)
    loop = RemoveLoop(SweeperStorage(pool, "s"), settings, KEEP)
    rests = []
    for _ in range(3):
        assert not await loop.run_once()
        rests.append(loop.poll_seconds)
    assert rests[0] < 7 and rests[1] < 7 and rests[2] == 7
    assert await left(database.owner) == [0, 0, 0, 0, 0]
    await stage(database.owner, 1, 200)
    await loop.run_once()
    assert await left(database.owner) == [0, 0, 0, 0, 0]
    other = RemoveLoop(SweeperStorage(pool, "another"), settings, KEEP)
    await stage(database.owner, 1, 200)
    await other.run_once()
    assert (await left(database.owner))[0] == 1, "one sweeper at a time"
