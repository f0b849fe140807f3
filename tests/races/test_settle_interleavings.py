"""Settling against every other writer, with the interleaving chosen by locks that are held on purpose."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from services.callback_receiver.storage import CallbackStorage
from shared.db.invariants import violations
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.support.receiver import receiver, stage


async def test_one_stuck_task_keeps_no_other_report_waiting(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as stuck, stage(database) as free:
        held, other = await stuck.claim(), await free.claim()
        async with database.owner.transaction():
            await database.owner.execute("SELECT FROM lockkeeper.tasks WHERE id = $1 FOR UPDATE", stuck.task_id)
            waiting = asyncio.create_task(it.result(held))
            assert (await asyncio.wait_for(it.result(other), 5)).json()["outcome"] == "completed"
            assert not waiting.done()
        assert (await waiting).json()["outcome"] == "completed"
    assert await violations(database.owner) == []


async def test_a_task_that_stays_locked_is_503_and_settled_by_the_next_delivery(database: TestDatabase) -> None:
    async with receiver(database, settle_seconds=0.1) as it, stage(database) as on:
        attempt = await on.claim()
        async with database.owner.transaction():
            await database.owner.execute("SELECT FROM lockkeeper.tasks WHERE id = $1 FOR UPDATE", on.task_id)
            answer = await it.result(attempt)
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert (await it.result(attempt)).status_code == 200


@pytest.mark.parametrize("committed", [True, False])
async def test_l01_a_success_that_meets_an_uncommitted_requeue(database: TestDatabase, committed: bool) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        held = database.owner.transaction()
        await held.start()
        await on.lose()
        answer = asyncio.create_task(it.result(attempt))
        await until(lambda: it.settler.waiting > 0)
        await (held.commit() if committed else held.rollback())
        assert (await answer).json()["outcome"] == "completed"
        assert await on.verbs() == ["enqueue", "claim", "submit", *(["requeue"] if committed else []), "complete"]
    assert await violations(database.owner) == []


@pytest.mark.parametrize("committed", [True, False])
async def test_a_success_that_meets_an_uncommitted_cancellation(database: TestDatabase, committed: bool) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        held = database.owner.transaction()
        await held.start()
        await on.cancel()
        answer = asyncio.create_task(it.result(attempt))
        await until(lambda: it.settler.waiting > 0)
        await (held.commit() if committed else held.rollback())
        assert (await answer).json()["outcome"] == ("cancelled" if committed else "completed")
    assert await violations(database.owner) == []


async def test_w01_a_success_that_meets_the_dispatchers_uncommitted_answer(database: TestDatabase) -> None:
    """The run's id is being written while the run already calls back: both are kept, the task never moves back."""
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim(submitted=False)
        pool = await database.open("dispatcher")
        async with pool.transaction() as connection:
            await connection.execute("SELECT FROM lockkeeper.tasks WHERE id = $1 FOR NO KEY UPDATE", on.task_id)
            await connection.execute(
                "UPDATE lockkeeper.task_attempts SET run_id = 5, submitted_at = lockkeeper.clock(), status = 'submitted' "
                "WHERE id = $1",
                attempt,
            )
            answer = asyncio.create_task(it.result(attempt))
            await until(lambda: it.settler.waiting > 0)
        assert (await answer).json()["outcome"] == "completed"
        row = await on.attempt(attempt)
        assert (row["status"], row["run_id"]) == ("completed", 5)
        await pool.close()
    assert await violations(database.owner) == []


async def test_two_attempts_succeed_at_once_and_exactly_one_wins(database: TestDatabase) -> None:
    async with receiver(database) as one, receiver(database) as two, stage(database) as on:
        old = await on.claim()
        await on.lose()
        new = await on.claim()
        answers = await asyncio.gather(one.result(old, result={"by": "old"}), two.result(new, result={"by": "new"}))
        outcomes = [answer.json()["outcome"] for answer in answers]
        assert outcomes in (["completed", "superseded"], ["lost", "completed"])
        winner = {"by": "old"} if outcomes[0] == "completed" else {"by": "new"}
        assert (await on.task())["result"] == winner
        assert (await on.verbs()).count("complete") == 1
    assert await violations(database.owner) == []


async def test_the_rounds_of_two_replicas_never_wait_for_each_other(database: TestDatabase) -> None:
    """Opposite orders, overlapping sets: rows that the other holds are skipped, so no deadlock can form."""
    async with receiver(database, gather_seconds=0.02) as one, receiver(database, gather_seconds=0.02) as two:
        attempts = []
        stages = []
        for _ in range(20):
            context = stage(database)
            on = await context.__aenter__()
            stages.append(context)
            attempts.append(await on.claim())
        calls = [each.result(attempt) for attempt in attempts for each in (one, two) for _ in range(5)]
        random.Random(7).shuffle(calls)
        answers = await asyncio.gather(*calls)
        assert {answer.json()["outcome"] for answer in answers} == {"completed"}
        for context in stages:
            await context.__aexit__(None, None, None)
        completions = await database.owner.fetchval(
            "SELECT count(*) FROM lockkeeper.task_events WHERE verb = 'complete'"
        )
        assert completions == 20
        deadlocks = await database.owner.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert deadlocks == 0
    assert await violations(database.owner) == []


@pytest.mark.parametrize("seed", range(6))
async def test_any_mixture_of_reports_and_other_writers_keeps_the_invariants(database: TestDatabase, seed: int) -> None:
    roll = random.Random(seed)
    async with receiver(database) as one, receiver(database) as two, stage(database, max_attempts=4) as on:
        attempts = [await on.claim()]
        answers: Counter[str] = Counter()
        for _ in range(25):
            posts: list[Any] = []
            for _ in range(roll.randrange(1, 5)):
                each, attempt = roll.choice([one, two]), roll.choice(attempts)
                posts.append(
                    roll.choice(
                        [
                            lambda each=each, attempt=attempt: each.post(attempt, "heartbeat", {"pages_done": 1}),
                            lambda each=each, attempt=attempt: each.failure(attempt, retryable=True),
                            lambda each=each, attempt=attempt: each.post(attempt, "heartbeat", {"pages_done": 2}),
                        ]
                    )()
                )
            if roll.random() < 0.15:
                posts.append(roll.choice([one, two]).result(roll.choice(attempts)))
            for answer in await asyncio.gather(*posts):
                assert answer.status_code == 200
                answers[answer.json()["outcome"]] += 1
            status = (await on.task())["status"]
            if status == "processing" and roll.random() < 0.3:
                await on.lose()
            elif status == "enqueued":
                attempts.append(await on.claim(submitted=roll.random() < 0.5))
            assert await violations(database.owner) == [], f"seed {seed}"
        assert sum(answers.values()) > 25


async def test_recovered_and_posted_results_meet(database: TestDatabase) -> None:
    async with receiver(database) as one, receiver(database) as two, stage(database) as on:
        attempt = await on.claim()
        await on.store_result(attempt, {"text": "once"})
        await database.owner.execute("INSERT INTO lockkeeper.recovered_results (attempt_id) VALUES ($1)", attempt)
        storage = CallbackStorage(two.pool)
        _, answer = await asyncio.gather(
            storage.settle_recovered(10), one.result(attempt, result=None, result_stored=True)
        )
        assert answer.json()["outcome"] == "completed"
        await storage.settle_recovered(10)
        left = await database.owner.fetchval(
            "SELECT count(*) FROM lockkeeper.recovered_results WHERE settled_at IS NULL"
        )
        assert left == 0
        assert (await on.verbs()).count("complete") == 1
    assert await violations(database.owner) == []
