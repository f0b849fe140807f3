"""What ended attempts teach: breakers that open, are tried and close; estimates that replace the defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import cast
from uuid import UUID

import pytest

from services.dispatcher.loops import ClaimLoop, LearnLoop, Submitter
from services.dispatcher.settings import DispatcherSettings
from services.dispatcher.storage import DispatcherStorage
from services.dispatcher.storage.learning import LearningStorage
from shared.contract.rows import LeasedAttempt
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.testing.rows import make_agent, make_tasks
from shared.vendors.jobs import Jobs
from tests.conftest import TestDatabase
from tests.support.gates import Clock, GatedDatabase, Gates
from tests.support.hands import Hands


@pytest.fixture
async def pool(database: TestDatabase) -> AsyncIterator[Database]:
    found = await database.open("dispatcher")
    yield found
    await found.close()


async def end(database: TestDatabase, leased: list[LeasedAttempt], *, works: bool, retryable: bool = True) -> None:
    async with Hands(database, "d", Gates(Clock())) as hands:
        hands.gates.clock.now = await database.owner.fetchval("SELECT now()")
        attempts = [each.attempt_id for each in leased]
        if works:
            await hands.succeed(attempts, tokens=100)
        else:
            await hands.fail(attempts, retryable=retryable)


async def claim(pool: Database, count: int = 1) -> list[LeasedAttempt]:
    leased = await DispatcherStorage(pool, "d").claim_tasks(count, 60)
    await LearningStorage(pool).watch_attempts([each.attempt_id for each in leased])
    return leased


async def reason(database: TestDatabase, task: UUID) -> tuple[str, bool]:
    row = await database.owner.fetchrow("SELECT reason, estimated_start > now() FROM lockkeeper.waiting($1)", task)
    assert row is not None
    return row[0], row[1]


async def test_a_breaker_opens_is_tried_with_one_task_and_closes(database: TestDatabase, pool: Database) -> None:
    await make_agent(database.owner, circuit_failures=2, circuit_seconds=60)
    tasks = await make_tasks(database.owner, 8, max_attempts=1)
    learning = LearningStorage(pool)
    await end(database, await claim(pool), works=False)
    assert await learning.learn() == {}
    await end(database, await claim(pool), works=False)
    opened = await learning.learn()
    assert opened["parser"].open_until is not None
    assert await claim(pool, 5) == []
    assert await reason(database, tasks[-1]) == ("circuit_open", True)
    await database.owner.execute("UPDATE lockkeeper.agent_circuits SET open_until = now() - interval '1 second'")
    (tried,) = await claim(pool, 5)
    assert await claim(pool, 5) == []
    assert (await reason(database, tasks[-1]))[0] == "circuit_open"
    await end(database, [tried], works=False)
    assert (await learning.learn())["parser"].open_until is not None
    await database.owner.execute("UPDATE lockkeeper.agent_circuits SET open_until = now() - interval '1 second'")
    await end(database, await claim(pool, 5), works=True)
    assert (await learning.learn())["parser"].open_until is None
    assert len(await claim(pool, 5)) == 4


async def test_input_that_the_agent_refuses_opens_no_breaker(database: TestDatabase, pool: Database) -> None:
    await make_agent(database.owner, circuit_failures=1)
    await make_tasks(database.owner, 2)
    await end(database, await claim(pool), works=False, retryable=False)
    assert await LearningStorage(pool).learn() == {}
    assert len(await claim(pool)) == 1


async def test_r07_measured_tokens_seconds_and_cost_replace_the_defaults(
    database: TestDatabase, pool: Database
) -> None:
    await make_agent(
        database.owner, max_tpm=10_000, default_tokens=4_000, daily_budget=Decimal(1), expected_cost=Decimal(1)
    )
    await database.owner.execute("UPDATE lockkeeper.agents SET daily_budget = NULL, max_tpm = NULL")
    await make_tasks(database.owner, 40)
    learning = LearningStorage(pool)
    head = "SELECT default_tokens, expected_seconds, expected_cost FROM lockkeeper.agent_headroom"
    await end(database, await claim(pool, 19), works=True)
    await learning.learn()
    assert (await database.owner.fetchrow(head))[0] == 4_000  # type: ignore[index]
    await end(database, await claim(pool, 1), works=True)
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET started_at = finished_at - interval '30 seconds', pages = 4, "
        "llm_cost = 0.02, compute_cost = 0.01, cost_status = 'final' WHERE finished_at IS NOT NULL"
    )
    await learning.learn()
    row = await database.owner.fetchrow(head)
    assert row is not None
    assert (row["default_tokens"], row["expected_cost"]) == (100, pytest.approx(Decimal("0.03")))
    assert 1 <= row["expected_seconds"] <= 30
    assert await database.owner.fetchval("SELECT count(*) FROM lockkeeper.watched_attempts") == 0
    await database.owner.execute("UPDATE lockkeeper.agents SET learn_estimates = false, version = version + 1")
    assert tuple(await database.owner.fetchrow(head)) == (4_000, 60, Decimal(1))  # type: ignore[arg-type]


async def test_an_idle_dispatcher_asks_one_question_for_work_and_lessons(database: TestDatabase) -> None:
    await make_agent(database.owner, circuit_failures=1)
    asked: list[str] = []

    async def note(name: str) -> None:
        asked.append(name)

    gated = GatedDatabase(database.url("dispatcher"), "dispatcher", Gates(Clock(), pass_gate=note))
    await gated.open()
    settings, notes, storage = DispatcherSettings(), Notes(gated), DispatcherStorage(gated, "d")
    learn = LearnLoop(LearningStorage(gated), notes, settings)
    # Nothing is ever handed on here: there is no runner behind it.
    submitter = Submitter(storage, cast("Jobs", None), notes, settings)
    claiming = ClaimLoop(storage, learn, submitter, notes, settings)
    for loop in (claiming, learn):
        assert not await loop.run_once()
    assert asked == ["look_for_work"]
    await make_tasks(database.owner, 1, max_attempts=1)
    await end(database, await claim(gated), works=False)
    for loop in (claiming, learn):
        assert not await loop.run_once()
    assert await database.owner.fetchval("SELECT open_until IS NOT NULL FROM lockkeeper.agent_circuits")
    await gated.close()
