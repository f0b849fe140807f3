"""Each report about each state of an attempt has one right answer."""

from __future__ import annotations

import asyncio
import itertools
from uuid import uuid4

import pytest

from shared.contract.channels import Channel
from shared.db.invariants import violations
from shared.testing.rows import make_agent, make_tasks
from tests.conftest import TestDatabase
from tests.support.receiver import USAGE, receiver, stage


async def test_a_success_completes_attempt_and_task(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        answer = await it.result(attempt, confidence=0.75, pages=3, trace_id="tr-9", trace_state="stored", damage=["x"])
        assert answer.status_code == 200
        assert answer.json() == {"attempt_id": str(attempt), "outcome": "completed"}
        task, row = await on.task(), await on.attempt(attempt)
        assert (task["status"], task["result"], task["confidence"]) == ("completed", {"n": 1}, 0.75)
        assert (task["pages_done"], task["pages_total"], task["reserved_tpm"]) == (3, 3, 0)
        assert task["locked_by"] is None
        assert (row["status"], row["trace_id"], row["trace_state"], row["pages"]) == ("completed", "tr-9", "stored", 3)
        assert row["used_tokens"] == 120  # what was read from a cache does not count towards the rate
        assert row["usage"] == [USAGE[0] | {"output_tokens": 20, "cache_write_tokens": 0}]
        assert row["report"] == {"damage": ["x"]}
        assert it.notes.of(Channel.TASK_CHANGED) == {str(on.task_id)}
        assert it.notes.of(Channel.TASK_READY) == {"parser"}
        assert it.notes.of(Channel.ATTEMPT_SETTLED) == {str(attempt)}
        assert it.notes.of(Channel.CANCEL_REQUESTED) == set()
    assert await violations(database.owner) == []


async def test_w02_twenty_deliveries_are_one_settlement_and_twenty_equal_answers(database: TestDatabase) -> None:
    async with receiver(database) as one, receiver(database) as two, stage(database) as on:
        attempt = await on.claim()
        first = await asyncio.gather(*(each.result(attempt) for each in [one, two] * 5))
        later = [await one.result(attempt) for _ in range(10)]
        assert {(answer.status_code, answer.content) for answer in (*first, *later)} == {
            (200, b'{"attempt_id":"%s","outcome":"completed"}' % str(attempt).encode())
        }
        assert (await on.verbs()).count("complete") == 1
        assert len(one.notes.of(Channel.ATTEMPT_SETTLED) | two.notes.of(Channel.ATTEMPT_SETTLED)) == 1
        # The same result once more with other words around it.
        assert (await one.result(attempt, confidence=0.1, usage=[])).json()["outcome"] == "completed"
        row = await on.attempt(attempt)
        assert (row["used_tokens"], (await on.task())["confidence"]) == (120, None)
    assert await violations(database.owner) == []


async def test_w01_a_callback_before_the_run_is_known_counts(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim(submitted=False)
        assert (await it.result(attempt)).json()["outcome"] == "completed"
        # The dispatcher's late answer only fills in the run.
        await on.dispatcher.record_runs([(attempt, 77)])
        task, row = await on.task(), await on.attempt(attempt)
        assert (task["status"], row["status"], row["run_id"]) == ("completed", "completed", 77)
    assert await violations(database.owner) == []


async def test_w01_a_callback_for_a_task_that_was_put_back_unspent_counts(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim(submitted=False)
        await on.dispatcher.release_attempts([(attempt, 0.0, "throttled")])
        assert (await on.task())["status"] == "enqueued"
        assert (await it.post(attempt, "heartbeat", {"pages_done": 1})).json() == {
            "attempt_id": str(attempt), "outcome": "running", "cancel_requested": False,
        }  # fmt: skip
        assert (await it.result(attempt)).json()["outcome"] == "completed"
        task = await on.task()
        assert (task["status"], task["reason"]) == ("completed", "late_success")
        assert await on.dispatcher.claim_tasks(10, 60) == []
    assert await violations(database.owner) == []


async def test_a_failure_of_an_attempt_that_was_put_back_unspent_spends_it(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        first = await on.claim(submitted=False)
        await on.dispatcher.release_attempts([(first, 0.0, "throttled")])
        assert (await it.failure(first, retryable=True)).json()["outcome"] == "failed"
        assert (await on.task())["status"] == "enqueued"
        second = await on.claim()
        assert second != first
        assert (await on.task())["attempt"] == 2
    assert await violations(database.owner) == []


async def test_l01_the_late_success_of_a_lost_attempt_wins_and_the_newer_is_superseded(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        old = await on.claim()
        await on.lose()
        new = await on.claim()
        answer = await it.result(old, result={"by": "old"}, trace_id="tr-old")
        assert answer.json()["outcome"] == "completed"
        task, first, second = await on.task(), await on.attempt(old), await on.attempt(new)
        assert (task["status"], task["result"], task["reason"]) == ("completed", {"by": "old"}, "late_success")
        assert (first["status"], first["error"]) == ("completed", None)
        assert second["status"] == "superseded"
        assert None not in (first["run_id"], second["run_id"])
        assert first["run_id"] != second["run_id"]
        assert second["cancel_requested_at"] is not None
        assert second["used_tokens"] == 500  # its run has been spending; nobody knows how much
        assert it.notes.of(Channel.CANCEL_REQUESTED) == {str(new)}
        assert it.notes.of(Channel.ATTEMPT_SETTLED) == {str(old), str(new)}
        # What the superseded run spent is still attributed, and nothing else changes.
        late = await it.result(new, result={"by": "new"}, trace_id="tr-new")
        assert late.json()["outcome"] == "superseded"
        assert late.content == (await it.result(new, result={"by": "new"}, trace_id="tr-new")).content
        second = await on.attempt(new)
        assert (second["trace_id"], second["used_tokens"]) == ("tr-new", 120)
        assert (await on.task())["result"] == {"by": "old"}
    assert await violations(database.owner) == []


async def test_l01_a_late_success_before_the_next_attempt_settles_the_waiting_task(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        old = await on.claim()
        await on.lose()
        assert (await it.result(old)).json()["outcome"] == "completed"
        assert (await on.task())["status"] == "completed"
        assert await on.dispatcher.claim_tasks(10, 60) == []
    assert await violations(database.owner) == []


@pytest.mark.parametrize("retryable", [True, False])
async def test_l01_the_failure_of_an_older_attempt_leaves_the_newer_alone(
    database: TestDatabase, retryable: bool
) -> None:
    async with receiver(database) as it, stage(database) as on:
        old = await on.claim()
        await on.lose()
        new = await on.claim()
        before = dict(await on.task())
        answer = await it.failure(old, retryable=retryable, usage=USAGE)
        assert answer.json()["outcome"] == "lost"
        assert dict(await on.task()) == before
        first = await on.attempt(old)
        assert (first["status"], first["error"]["reason"], first["used_tokens"]) == ("lost", "model_failed", 120)
        assert (await it.result(new)).json()["outcome"] == "completed"
        # An attempt speaks once: the same failure keeps its answer whatever came after.
        assert (await it.failure(old, retryable=retryable, usage=USAGE)).content == answer.content
        assert (await it.result(old)).json()["outcome"] == "lost"
    assert await violations(database.owner) == []


async def test_a_hopeless_failure_of_a_lost_attempt_ends_the_task_that_waits_for_another(
    database: TestDatabase,
) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        await on.lose()
        answer = await it.failure(attempt, retryable=False, reason="password_required")
        assert answer.json()["outcome"] == "failed"
        task = await on.task()
        assert (task["status"], task["error"]["reason"]) == ("failed", "password_required")
    assert await violations(database.owner) == []


async def test_a_retryable_failure_of_a_lost_attempt_changes_nothing_for_the_task(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        await on.lose()
        before = dict(await on.task())
        assert (await it.failure(attempt, retryable=True)).json()["outcome"] == "lost"
        assert dict(await on.task()) == before


async def test_a_retryable_failure_puts_the_task_back_with_backoff_until_attempts_are_used_up(
    database: TestDatabase,
) -> None:
    async with receiver(database) as it, stage(database, max_attempts=2) as on:
        first = await on.claim()
        created = (await on.task())["created_at"]
        answer = await it.failure(first, retryable=True, retry_after_seconds=90)
        assert answer.json()["outcome"] == "failed"
        task = await on.task()
        wait = await database.owner.fetchval(
            "SELECT extract(epoch FROM available_at - lockkeeper.clock()) FROM lockkeeper.tasks WHERE id = $1",
            on.task_id,
        )
        assert 80 < wait <= 90  # the provider asked for more than the backoff
        assert (task["status"], task["deferred"], task["created_at"], task["reason"]) == (
            "enqueued", True, created, "model_failed",
        )  # fmt: skip
        assert (await on.attempt(first))["used_tokens"] == 0
        second = await on.claim()
        assert (await it.failure(second, retryable=True)).json()["outcome"] == "failed"
        task = await on.task()
        assert (task["status"], task["error"]) == (
            "failed",
            {"reason": "model_failed", "message": "the model did not answer"},
        )
        assert await on.verbs() == ["enqueue", "claim", "submit", "retry", "claim", "submit", "fail"]
    assert await violations(database.owner) == []


async def test_a_hopeless_failure_is_never_retried(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database, max_attempts=5) as on:
        attempt = await on.claim()
        await it.failure(attempt, retryable=False, reason="not_a_pdf", message="this is no PDF")
        task = await on.task()
        assert (task["status"], task["error"]["message"]) == ("failed", "this is no PDF")


async def test_a_callback_after_cancellation_keeps_only_what_was_spent(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        await on.cancel()
        beat = await it.post(attempt, "heartbeat", {"pages_done": 1})
        assert beat.json() == {"attempt_id": str(attempt), "outcome": "cancelled", "cancel_requested": True}
        assert (await it.result(attempt, trace_id="tr-3")).json()["outcome"] == "cancelled"
        task, row = await on.task(), await on.attempt(attempt)
        assert (task["status"], task["result"]) == ("cancelled", None)
        assert (row["status"], row["trace_id"], row["used_tokens"]) == ("cancelled", "tr-3", 120)
    assert await violations(database.owner) == []


async def test_a_completed_attempt_without_usage_weighs_as_it_was_reserved(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        await it.post(attempt, "result", {"result": {}})
        row = await on.attempt(attempt)
        assert (row["used_tokens"], row["usage"]) == (500, None)


async def test_r06_what_was_spent_without_a_budget_weighs_on_one_that_is_set_within_the_minute(
    database: TestDatabase,
) -> None:
    await make_agent(database.owner, lease_seconds=300)
    async with receiver(database) as it, stage(database) as on:
        first = await on.claim()
        await it.result(first)  # 120 tokens
        await database.owner.execute("UPDATE lockkeeper.agents SET max_tpm = 600, version = version + 1")
        await make_tasks(database.owner, 1, estimated_tokens=500)
        assert await on.dispatcher.claim_tasks(10, 60) == []
    assert await violations(database.owner) == []


async def test_a_stored_result_is_copied_and_a_missing_one_refused(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        refused = await it.result(attempt, result=None, result_stored=True)
        assert (refused.status_code, refused.json()["reason"]) == (422, "result_missing")
        assert (await on.task())["status"] == "processing"
        await on.store_result(attempt, {"text": "long"})
        assert (await it.result(attempt, result=None, result_stored=True)).status_code == 200
        assert (await on.task())["result"] == {"text": "long"}


async def test_w03_every_order_of_progress_and_end_gives_the_same_row(database: TestDatabase) -> None:
    rows = []
    async with receiver(database) as it:
        for order in itertools.permutations(["one", "two", "end"]):
            async with stage(database) as on:
                attempt = await on.claim()
                for each in order:
                    if each == "end":
                        await it.result(attempt, pages=2)
                    else:
                        await it.post(
                            attempt, "heartbeat", {"pages_done": {"one": 1, "two": 2}[each], "pages_total": 2}
                        )
                assert (await it.failure(attempt, retryable=True)).json()["outcome"] == "completed"
                task = await on.task()
                rows.append(
                    [task[name] for name in ("status", "result", "pages_done", "pages_total", "step", "version")]
                )
    assert rows == [rows[0]] * 6
    assert rows[0][:4] == ["completed", {"n": 1}, 2, 2]


async def test_heartbeats_extend_the_lease_and_never_move_progress_back(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim(submitted=False)
        before = await on.task()
        answer = await it.post(attempt, "heartbeat", {"pages_done": 4, "pages_total": 9, "step": "reading"})
        assert answer.json() == {"attempt_id": str(attempt), "outcome": "running", "cancel_requested": False}
        await it.post(attempt, "heartbeat", {"pages_done": 3, "step": "older"})
        task, row = await on.task(), await on.attempt(attempt)
        assert (task["pages_done"], task["pages_total"], task["step"]) == (4, 9, "reading")
        assert task["lease_expires_at"] > before["lease_expires_at"]
        assert task["version"] == before["version"]
        # Its run is not known yet, and somebody must still ask for it.
        assert (row["status"], row["started_at"] is None) == ("leased", False)
        await on.dispatcher.record_runs([(attempt, 4_711)])
        await it.post(attempt, "heartbeat", {"pages_done": 4})
        row = await on.attempt(attempt)
        assert (row["status"], row["run_id"]) == ("running", 4_711)
        assert str(on.task_id) in it.notes.of(Channel.TASK_CHANGED)
        # The next attempt starts at its own first page.
        await it.failure(attempt, retryable=True)
        again = await on.claim()
        await it.post(again, "heartbeat", {"pages_done": 1})
        assert (await on.task())["pages_done"] == 1
        assert (await it.post(attempt, "heartbeat", {"pages_done": 9})).json() == {
            "attempt_id": str(attempt), "outcome": "failed", "cancel_requested": True,
        }  # fmt: skip
        assert (await on.task())["pages_done"] == 1


async def test_w09_unknown_attempts_are_404_and_write_nothing(database: TestDatabase) -> None:
    async with receiver(database) as it:
        for attempt in (uuid4(), "1", "'; DROP TABLE lockkeeper.tasks; --", "%2e%2e", "0" * 36, f"{{{uuid4()}}}"):
            for kind in ("result", "failure", "heartbeat"):
                body = {"reason": "r", "message": "m", "retryable": True} if kind == "failure" else {}
                answer = await it.post(attempt, kind, body)
                assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert (await it.post(uuid4(), "nonsense", {})).status_code == 404
        assert (await it.client.get(f"/callbacks/v1/attempts/{uuid4()}/result")).status_code == 405
        assert (await it.client.post("/elsewhere")).headers["content-type"] == "application/problem+json"


async def test_recovered_results_are_settled_like_callbacks(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on, stage(database) as other:
        attempt = await on.claim()
        silent = await other.claim()
        await on.store_result(attempt, {"text": "found"})
        await database.owner.executemany(
            "INSERT INTO lockkeeper.recovered_results (attempt_id) VALUES ($1)", [(attempt,), (silent,)]
        )
        assert await it.recovered.run_once() is False
        task, row = await on.task(), await on.attempt(attempt)
        assert (task["status"], task["result"], task["confidence"]) == ("completed", {"text": "found"}, 0.5)
        assert (row["trace_id"], row["usage"][0]["model"], row["pages"]) == ("tr-1", "m", 3)
        # A row without a result is dealt with and leaves its task alone.
        assert (await other.task())["status"] == "processing"
        left = await database.owner.fetchval(
            "SELECT count(*) FROM lockkeeper.recovered_results WHERE settled_at IS NULL"
        )
        assert left == 0
        # The callback that comes after all finds it done.
        assert (await it.result(attempt)).json()["outcome"] == "completed"
    assert await violations(database.owner) == []
