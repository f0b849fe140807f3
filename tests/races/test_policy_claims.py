"""Claims of agents with options: budgets, fair share and backfill hold for any number of dispatchers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from services.dispatcher.storage import DispatcherStorage
from shared.db.invariants import violations
from shared.testing.rows import make_agent, make_tasks, settle
from tests.conftest import TestDatabase

WAITING = "SELECT w.* FROM lockkeeper.waiting($1) w"


async def set_purse(database: TestDatabase, customer: str, daily: object) -> None:
    await database.owner.execute(
        "INSERT INTO lockkeeper.customers (name, daily_budget) VALUES ($1, $2::text::numeric) "
        "ON CONFLICT (name) DO UPDATE SET daily_budget = excluded.daily_budget, version = customers.version + 1",
        customer, None if daily is None else str(daily),
    )  # fmt: skip


async def learn_cost(database: TestDatabase, attempt: UUID, cost: str) -> None:
    """What the cost attributor does when it knows what an attempt cost."""
    await database.owner.execute(
        "WITH known AS (UPDATE lockkeeper.task_attempts SET llm_cost = $2::text::numeric, cost_status = 'final' "
        "WHERE id = $1 RETURNING agent) INSERT INTO lockkeeper.spending (scope, name, day, llm_cost) "
        "SELECT 'agent', agent, (now() AT TIME ZONE 'UTC')::date, $2::text::numeric FROM known "
        "ON CONFLICT (scope, name, day) DO UPDATE SET llm_cost = spending.llm_cost + excluded.llm_cost",
        attempt, cost,
    )  # fmt: skip


async def test_a_budget_is_reserved_in_the_claim_and_trued_up_by_the_ledger(database: TestDatabase) -> None:
    await make_agent(database.owner, daily_budget=Decimal(1), expected_cost=Decimal("0.4"))
    tasks = await make_tasks(database.owner, 6)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    first, second = await storage.claim_tasks(10, 60)
    assert await storage.claim_tasks(10, 60) == []
    waiting = await database.owner.fetchrow(WAITING, tasks[2])
    assert waiting is not None
    tomorrow = await database.owner.fetchval("SELECT lockkeeper.next_period('day')")
    assert (waiting["reason"], waiting["place"], waiting["estimated_start"]) == ("cost_budget", 1, tomorrow)
    await settle(database.owner, [first.attempt_id])
    await learn_cost(database, first.attempt_id, "0.05")
    assert len(await storage.claim_tasks(10, 60)) == 1
    await settle(database.owner, [second.attempt_id])
    await learn_cost(database, second.attempt_id, "0.9")
    assert await storage.claim_tasks(10, 60) == []
    left = await database.owner.fetchval("SELECT cost_left FROM lockkeeper.budget_state")
    assert left == Decimal("-0.35")
    await database.owner.execute("UPDATE lockkeeper.agents SET daily_budget = NULL, version = version + 1")
    assert len(await storage.claim_tasks(10, 60)) == 3
    assert await violations(database.owner) == []
    await pool.close()


async def test_r03_what_is_given_back_or_never_ran_weighs_on_no_budget(database: TestDatabase) -> None:
    await make_agent(database.owner, daily_budget=Decimal(1), expected_cost=Decimal(1))
    await make_tasks(database.owner, 2)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    (leased,) = await storage.claim_tasks(10, 60)
    await storage.release_attempts([(leased.attempt_id, 0.0, "throttled")])
    (again,) = await storage.claim_tasks(10, 60)
    assert again.attempt_id == leased.attempt_id
    await storage.refuse_attempts([(again.attempt_id, {"reason": "bad_job", "message": "no"})])
    assert len(await storage.claim_tasks(10, 60)) == 1
    await pool.close()


async def test_q03_a_customer_that_spent_its_budget_costs_the_others_nothing(database: TestDatabase) -> None:
    await make_agent(database.owner, expected_cost=Decimal(1))
    await make_agent(database.owner, "other", expected_cost=Decimal(1))
    await set_purse(database, "spent", 2)
    flood = await make_tasks(database.owner, 3_000, customer="spent")
    await make_tasks(database.owner, 3, agent="other", customer="spent")
    await make_tasks(database.owner, 2, customer="rich", priority=1)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    claimed = await storage.claim_tasks(20, 60)
    customers = await database.owner.fetch(
        "SELECT customer, count(*) FROM lockkeeper.tasks WHERE status = 'processing' GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in customers] == [("rich", 2), ("spent", 2)]
    assert len(claimed) == 4
    reasons = await database.owner.fetch("SELECT * FROM lockkeeper.waiting_reasons($1)", [flood[0], flood[-1]])
    assert {row["reason"] for row in reasons if row["task_id"] == flood[-1]} == {"cost_budget"}
    await set_purse(database, "spent", 3)
    assert len(await storage.claim_tasks(20, 60)) == 1
    await set_purse(database, "spent", None)
    assert len(await storage.claim_tasks(20, 60)) == 20
    await pool.close()


async def test_fair_share_gives_each_customer_its_turns_however_many_wait(database: TestDatabase) -> None:
    await make_agent(database.owner, fair_share=True, customer_weights={"gold": 2}, max_concurrent_tasks=4)
    await make_tasks(database.owner, 1_500, customer="flood", estimated_tokens=100)
    gold = await make_tasks(database.owner, 40, customer="gold", estimated_tokens=100)
    await make_tasks(database.owner, 40, estimated_tokens=100)
    urgent = await make_tasks(database.owner, 1, customer="flood", priority=90, estimated_tokens=100)
    pool = await database.open("dispatcher")
    place = await database.owner.fetchrow(WAITING, gold[9])
    assert place is not None
    assert place["place"] == 1 + 9 + 5 + 5 + 1
    served: Counter[str | None] = Counter()
    order: list[UUID] = []
    for number in range(20):
        leased = await DispatcherStorage(pool, f"d{number % 3}").claim_tasks(8, 60)
        order += [each.task_id for each in leased]
        await settle(database.owner, [each.attempt_id for each in leased])
    rows = await database.owner.fetch("SELECT id, customer FROM lockkeeper.tasks WHERE id = ANY ($1)", order)
    served.update(row["customer"] for row in rows)
    assert order[0] == urgent[0]
    assert len(order) == 80
    assert [served[name] for name in ("gold", "flood", None)] == pytest.approx([40, 20, 20], abs=2)
    assert await violations(database.owner) == []
    await pool.close()


async def test_backfill_fills_the_room_that_the_first_one_leaves_and_not_for_ever(database: TestDatabase) -> None:
    await make_agent(database.owner, max_tpm=100, backfill=True, backfill_limit=2)
    await make_tasks(database.owner, 1, estimated_tokens=60, priority=60)
    (large,) = await make_tasks(database.owner, 1, estimated_tokens=90)
    await make_tasks(database.owner, 5, estimated_tokens=10, priority=40)
    pool = await database.open("dispatcher")
    storage = DispatcherStorage(pool, "a")
    first, *small = await storage.claim_tasks(10, 60)
    assert len(small) == 2
    assert await storage.claim_tasks(10, 60) == []
    assert await database.owner.fetchval("SELECT overtaken FROM lockkeeper.tasks WHERE id = $1", large) == 2
    await settle(database.owner, [first.attempt_id, *(each.attempt_id for each in small)])
    found = await storage.claim_tasks(10, 60)
    assert [found[0].task_id, len(found)] == [large, 2]
    await pool.close()


async def test_agents_of_both_kinds_take_turns(database: TestDatabase) -> None:
    await make_agent(database.owner, "plain")
    await make_agent(database.owner, "fair", fair_share=True)
    for agent in ("plain", "fair"):
        await make_tasks(database.owner, 100, agent=agent)
    pool = await database.open("dispatcher")
    claimed = await DispatcherStorage(pool, "a").claim_tasks(10, 60)
    assert Counter(each.agent for each in claimed) == {"plain": 5, "fair": 5}
    ones = [(await DispatcherStorage(pool, "a").claim_tasks(1, 60))[0].agent for _ in range(40)]
    assert set(ones) == {"plain", "fair"}
    await pool.close()


@pytest.mark.parametrize("dispatchers", [2, 8])
async def test_q01_limits_and_budgets_hold_at_every_instant_of_a_storm(
    database: TestDatabase, dispatchers: int
) -> None:
    """Agents of every kind of options, limits and budgets changing live; judged by the event log and the reservations."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    roll = random.Random(seed)
    kinds: list[dict[str, Any]] = [
        {"max_concurrent_tasks": 3, "fair_share": True},
        {"max_tpm": 60, "backfill": True, "backfill_limit": 2},
        {"max_concurrent_tasks": 5, "daily_budget": Decimal(40), "expected_cost": Decimal(1)},
        {"max_tpm": 80},
    ]
    names = [f"agent-{number}" for number in range(len(kinds))]
    for name, kind in zip(names, kinds, strict=True):
        await make_agent(database.owner, name, **kind)
        for customer in ("acme", "beta", None):
            for tokens in (10, 25):
                await make_tasks(database.owner, 20, agent=name, customer=customer, estimated_tokens=tokens)
    await set_purse(database, "acme", 2)
    pools = [await database.open("dispatcher", size=2) for _ in range(2)]
    settler = await database.open("callback_receiver", size=2)
    running: list[UUID] = []
    claimed: list[UUID] = []
    stop = asyncio.Event()

    async def dispatch(number: int) -> None:
        storage = DispatcherStorage(pools[number % 2], f"d{number}")
        while not stop.is_set():
            leased = await storage.claim_tasks(roll.choice([1, 5, 20]), 60)
            claimed.extend(each.task_id for each in leased)
            running.extend(each.attempt_id for each in leased)
            await asyncio.sleep(0)

    async def end_some() -> None:
        while not stop.is_set():
            roll.shuffle(running)
            taken = [running.pop() for _ in range(min(len(running), roll.randint(1, 4)))]
            if taken:
                async with settler.transaction() as connection:
                    await settle(connection, taken)  # type: ignore[arg-type]
            await asyncio.sleep(0.002)

    async def change() -> None:
        for most in range(2, 40):
            if stop.is_set():
                return
            # Budgets only rise here, so that at the end what is reserved tells whether any was ever exceeded.
            await set_purse(database, "acme", most)
            await database.owner.execute(
                "UPDATE lockkeeper.agents SET version = version + 1, max_tpm = $2 WHERE name = $1 AND max_tpm IS NOT NULL",
                roll.choice(names), roll.randint(30, 90),
            )  # fmt: skip
            over = await database.owner.fetch("SELECT * FROM lockkeeper.budget_state WHERE cost_left < 0")
            assert over == []
            await asyncio.sleep(0.02)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(dispatchers):
            group.create_task(dispatch(number))
        group.create_task(end_some())
        group.create_task(change())
        while len(claimed) < 180:
            await asyncio.sleep(0.02)
        stop.set()
    assert len(claimed) == len(set(claimed))
    assert await violations(database.owner) == []
    assert await database.owner.fetch("SELECT * FROM lockkeeper.budget_state WHERE cost_left < 0") == []
    unreserved = await database.owner.fetchval(
        "SELECT count(*) FROM lockkeeper.task_attempts x JOIN lockkeeper.tasks t ON t.id = x.task_id "
        "WHERE (t.customer = 'acme' OR t.agent = 'agent-2') "
        "AND NOT EXISTS (SELECT FROM lockkeeper.reservations r WHERE r.attempt_id = x.id)"
    )
    assert unreserved == 0
    assert await database.owner.fetchval("SELECT max(overtaken) FROM lockkeeper.tasks") <= 2
    for pool in (*pools, settler):
        await pool.close()
