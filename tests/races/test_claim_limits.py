"""The claim under concurrency: never over a limit at any committed instant, with any number of dispatchers."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from services.dispatcher.storage import DispatcherStorage
from shared.contract.ids import uuid7
from shared.db.invariants import violations
from shared.db.statements import load
from shared.testing.rows import make_agent, make_tasks, settle
from shared.testing.wait import until
from tests.conftest import TestDatabase

SQL = load("services.dispatcher")


async def claim_in_open_transaction(connection: Any, batch: int = 10) -> list[Any]:
    """The claim's statements on a connection whose transaction stays open."""
    (work,) = await connection.fetch(SQL["look_for_work"].sql)
    rows = await connection.fetch(SQL["claim_tasks"].sql, work["plain"], 8, batch, "held-open", uuid7(), 60.0)
    return [row for row in rows if row["task_id"] is not None]


async def test_q01_a_second_dispatcher_claims_nothing_while_the_first_is_uncommitted(database: TestDatabase) -> None:
    await make_agent(database.owner, max_concurrent_tasks=1)
    await make_tasks(database.owner, 10)
    pool = await database.open("dispatcher")
    async with pool.transaction() as first:
        assert len(await claim_in_open_transaction(first)) == 1
        other = DispatcherStorage(pool, "b")
        assert await other.claim_tasks(10, 60) == []
    assert await DispatcherStorage(pool, "b").claim_tasks(10, 60) == []
    await pool.close()


async def test_q01_claims_at_once_share_the_agents_among_them(database: TestDatabase) -> None:
    for number in range(20):
        await make_agent(database.owner, f"agent-{number:02}", max_concurrent_tasks=1)
        await make_tasks(database.owner, 2, agent=f"agent-{number:02}")
    pool = await database.open("dispatcher")
    async with pool.transaction() as first:
        held = {row["agent"] for row in await claim_in_open_transaction(first)}
        others = {each.agent for each in await DispatcherStorage(pool, "b").claim_tasks(50, 60)}
        assert held == {f"agent-{number:02}" for number in range(8)}
        assert others == {f"agent-{number:02}" for number in range(8, 20)}
    assert await violations(database.owner) == []
    await pool.close()


async def test_q03_agents_that_may_start_nothing_hide_nobody_behind_them(database: TestDatabase) -> None:
    """However many stand before it in the line: full ones, and ones whose first task does not fit what is left."""
    for number in range(40):
        limits = {"max_concurrent_tasks": 1} if number % 2 else {"max_tpm": 100}
        await make_agent(database.owner, f"agent-{number}", **limits)
        await make_tasks(database.owner, 2, agent=f"agent-{number}", estimated_tokens=60, priority=90)
    await make_agent(database.owner, "last", max_concurrent_tasks=1)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    assert len(await storage.claim_tasks(100, 60)) == 40
    await make_tasks(database.owner, 1, agent="last", priority=1)
    assert [each.agent for each in await storage.claim_tasks(1, 60)] == ["last"]
    await pool.close()


async def test_r01_five_claims_at_once_share_one_token_budget(database: TestDatabase) -> None:
    await make_agent(database.owner, max_tpm=200)
    for tokens in (58, 80, 175, 175, 175):
        await make_tasks(database.owner, 1, estimated_tokens=tokens)
    pool = await database.open("dispatcher", size=5)
    claims = await asyncio.gather(*(DispatcherStorage(pool, f"d{n}").claim_tasks(10, 60) for n in range(5)))
    assert sum(len(claim) for claim in claims) == 2
    reserved = await database.owner.fetchval(
        "SELECT sum(reserved_tpm) FROM lockkeeper.tasks WHERE status = 'processing'"
    )
    assert reserved == 138
    waiting = await database.owner.fetch(
        "SELECT w.reason FROM lockkeeper.tasks t, lockkeeper.waiting(t.id) w WHERE t.status = 'enqueued'"
    )
    assert [row["reason"] for row in waiting] == ["token_budget"] * 3
    await pool.close()


async def test_q03_a_saturated_agent_costs_the_others_nothing(database: TestDatabase) -> None:
    await make_agent(database.owner, "full", max_concurrent_tasks=1)
    await make_agent(database.owner, "free")
    await make_tasks(database.owner, 5_000, agent="full", priority=90)
    await make_tasks(database.owner, 1, agent="free", priority=1)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    first = await storage.claim_tasks(10, 60)
    assert sorted(each.agent for each in first) == ["free", "full"]
    await make_tasks(database.owner, 1, agent="free", priority=1)
    assert [each.agent for each in await storage.claim_tasks(10, 60)] == ["free"]
    await pool.close()


async def test_q06_finished_tasks_cost_a_claim_nothing(database: TestDatabase) -> None:
    await make_agent(database.owner)
    await database.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, status, finished_at) "
        "SELECT 'parser', 'completed', now() FROM generate_series(1, 20000)"
    )
    await make_tasks(database.owner, 50)
    pool = await database.open("dispatcher", size=1)
    storage = DispatcherStorage(pool, "a")
    assert len(await storage.claim_tasks(10, 60)) == 10
    await database.owner.execute("SELECT pg_stat_reset(); SELECT pg_stat_force_next_flush()")
    assert len(await storage.claim_tasks(10, 60)) == 10
    await pool.close()

    async def told() -> bool:
        return bool(await database.owner.fetchval("SELECT sum(idx_scan) > 0 FROM pg_stat_user_indexes"))

    await until(told)
    read = await database.owner.fetchrow(
        "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'lockkeeper.tasks'::regclass"
    )
    assert read["seq_tup_read"] == 0
    assert read["idx_tup_fetch"] < 1_000


@pytest.mark.parametrize("limit", [1, 5])
async def test_q05_never_more_rows_than_the_limit_under_any_plan(database: TestDatabase, limit: int) -> None:
    await make_agent(database.owner)
    pool = await database.open("dispatcher", size=1)
    storage = DispatcherStorage(pool, "a")
    await database.owner.execute("ANALYZE lockkeeper.tasks")
    await make_tasks(database.owner, 2_000)
    for plan in ("", "SET enable_hashjoin = off; SET enable_mergejoin = off", "SET enable_indexscan = off"):
        async with pool.connection() as connection:
            await connection.execute(f"RESET ALL; {plan}")
        for _ in range(30):
            assert len(await storage.claim_tasks(limit, 60)) == limit
        await database.owner.execute("ANALYZE lockkeeper.tasks")
    await pool.close()


async def test_head_of_line_is_not_overtaken_by_what_is_smaller(database: TestDatabase) -> None:
    await make_agent(database.owner, max_tpm=100)
    (large,) = await make_tasks(database.owner, 1, estimated_tokens=90)
    await make_tasks(database.owner, 3, estimated_tokens=10, priority=40)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    first = await storage.claim_tasks(10, 60)
    assert first[0].task_id == large
    assert len(first) == 2
    await settle(database.owner, [first[1].attempt_id], used_tokens=10)
    (next_large,) = await make_tasks(database.owner, 1, estimated_tokens=95, priority=45)
    assert await storage.claim_tasks(10, 60) == []
    reason = await database.owner.fetchval("SELECT reason FROM lockkeeper.waiting($1)", next_large)
    assert reason == "token_budget"
    await pool.close()


async def test_r06_tokens_that_were_used_weigh_for_sixty_seconds_and_no_longer(database: TestDatabase) -> None:
    await make_agent(database.owner, max_tpm=100)
    await make_tasks(database.owner, 3, estimated_tokens=100)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    (first,) = await storage.claim_tasks(10, 60)
    await settle(database.owner, [first.attempt_id], used_tokens=40)
    assert await storage.claim_tasks(10, 60) == []
    await database.owner.execute("UPDATE lockkeeper.token_spending SET at = now() - interval '61 seconds'")
    assert len(await storage.claim_tasks(10, 60)) == 1
    await pool.close()


async def test_a_task_beyond_the_whole_budget_runs_alone_and_is_marked(database: TestDatabase) -> None:
    await make_agent(database.owner, max_tpm=100)
    await make_tasks(database.owner, 1, estimated_tokens=10, priority=60)
    (large,) = await make_tasks(database.owner, 1, estimated_tokens=5_000)
    await make_tasks(database.owner, 1, estimated_tokens=10, priority=40)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    (small,) = await storage.claim_tasks(10, 60)
    await settle(database.owner, [small.attempt_id])
    (alone,) = await storage.claim_tasks(10, 60)
    assert alone.task_id == large
    assert await database.owner.fetchval("SELECT oversized FROM lockkeeper.tasks WHERE id = $1", large)
    assert await storage.claim_tasks(10, 60) == []
    await settle(database.owner, [alone.attempt_id])
    assert len(await storage.claim_tasks(10, 60)) == 1
    await pool.close()


async def test_a_lowered_limit_waits_for_open_claims_and_binds_the_next(database: TestDatabase) -> None:
    """No claim commits above the limit in force at its commit, not even for an agent that had none."""
    await make_agent(database.owner)
    await make_tasks(database.owner, 10)
    pool = await database.open("dispatcher")
    operator = await database.open("console")
    async with pool.transaction() as open_claim:
        assert len(await claim_in_open_transaction(open_claim, 4)) == 4
        change = asyncio.create_task(
            operator.execute("UPDATE lockkeeper.agents SET max_concurrent_tasks = 2, version = version + 1")
        )
        done, _ = await asyncio.wait([change], timeout=0.3)
        assert not done, "the change of the limit did not wait for the claim"
    await change
    assert await DispatcherStorage(pool, "b").claim_tasks(10, 60) == []
    await operator.close()
    await pool.close()


async def test_q13_an_operators_open_edit_delays_that_agent_only(database: TestDatabase) -> None:
    await make_agent(database.owner, "edited", max_concurrent_tasks=5)
    await make_agent(database.owner, "other", max_concurrent_tasks=5)
    await make_tasks(database.owner, 3, agent="edited")
    await make_tasks(database.owner, 3, agent="other")
    pool = await database.open("dispatcher")
    async with database.owner.transaction():
        await database.owner.execute("UPDATE lockkeeper.agents SET description = 'x' WHERE name = 'edited'")
        async with asyncio.timeout(5):
            claimed = await DispatcherStorage(pool, "a").claim_tasks(10, 60)
        assert {each.agent for each in claimed} == {"other"}
    assert {each.agent for each in await DispatcherStorage(pool, "a").claim_tasks(10, 60)} == {"edited"}
    await pool.close()


@pytest.mark.parametrize("dispatchers", [2, 8])
async def test_q01_limits_hold_at_every_instant_of_a_storm(database: TestDatabase, dispatchers: int) -> None:
    """Agents of all three modes, their limits changing live, tasks ending at random; judged by the event log."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    roll = random.Random(seed)
    for number in range(6):
        modes: list[dict[str, int]] = [
            {"max_concurrent_tasks": 3},
            {"max_tpm": 40},
            {"max_concurrent_tasks": 4, "max_tpm": 30},
        ]
        await make_agent(database.owner, f"agent-{number}", **modes[number % 3])
        await make_tasks(database.owner, 60, agent=f"agent-{number}", estimated_tokens=10)
    running: list[UUID] = []
    claimed_total = 0
    stop = asyncio.Event()
    pools = [await database.open("dispatcher", size=2) for _ in range(2)]
    settler = await database.open("callback_receiver", size=2)

    async def dispatch(number: int) -> None:
        nonlocal claimed_total
        storage = DispatcherStorage(pools[number % 2], f"d{number}")
        while not stop.is_set():
            leased = await storage.claim_tasks(roll.choice([1, 5, 50]), 60)
            claimed_total += len(leased)
            running.extend(each.attempt_id for each in leased)
            await asyncio.sleep(0)

    async def end_some() -> None:
        while not stop.is_set():
            roll.shuffle(running)
            taken = [running.pop() for _ in range(min(len(running), roll.randint(1, 5)))]
            if taken:
                async with settler.transaction() as connection:
                    await settle(connection, taken)  # type: ignore[arg-type]
            await asyncio.sleep(0.002)

    async def change_limits() -> None:
        while not stop.is_set():
            await database.owner.execute(
                "UPDATE lockkeeper.agents SET version = version + 1, "
                "max_concurrent_tasks = CASE WHEN max_concurrent_tasks IS NOT NULL THEN $2::int END, "
                "max_tpm = CASE WHEN max_tpm IS NOT NULL THEN $3::bigint END WHERE name = $1",
                f"agent-{roll.randrange(6)}", roll.randint(1, 6), roll.randint(10, 60),
            )  # fmt: skip
            await asyncio.sleep(0.01)

    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        for number in range(dispatchers):
            group.create_task(dispatch(number))
        group.create_task(end_some())
        group.create_task(change_limits())
        while claimed_total < 300:
            await asyncio.sleep(0.02)
        stop.set()
    assert await violations(database.owner) == []
    for pool in (*pools, settler):
        await pool.close()
