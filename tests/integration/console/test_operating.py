from __future__ import annotations

import asyncio
import uuid
from typing import Any

import asyncpg
import pytest

from services.console.messages.answers import AuditPage, BulkAnswer, TaskDetail
from shared.contract.channels import Channel
from shared.db.listener import Listener
from shared.testing.wait import until
from tests.integration.console.conftest import API, Console

TERMINAL = ("completed", "failed", "cancelled")


async def stage(owner: asyncpg.Connection, status: str, attempt_status: str | None = None) -> tuple[str, uuid.UUID]:
    """A task in this status with one attempt in that, and both ids."""
    attempt_id = uuid.uuid4()
    task_id = await owner.fetchval(
        "INSERT INTO lockkeeper.tasks (agent, status, attempt, attempt_id, finished_at, lease_expires_at, locked_by, input, "
        "labels, customer, reserved_tpm) VALUES ('reader', $1::text, 1, $2, "
        "CASE WHEN $1 IN ('completed', 'failed', 'cancelled') THEN now() END, "
        "CASE $1 WHEN 'processing' THEN now() + interval '1 minute' END, 'd1', '{\"a\": 1}', '{\"l\": \"1\"}', 'C', 5) "
        "RETURNING id",
        status, attempt_id,
    )  # fmt: skip
    if attempt_status is not None:
        await owner.execute(
            "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at) VALUES "
            "($1, $2, 'reader', 1, $3::text, now(), CASE WHEN $3 IN ('completed', 'failed', 'lost') THEN now() END)",
            attempt_id, task_id, attempt_status,
        )  # fmt: skip
    return str(task_id), attempt_id


async def frozen(console: Console, task_id: str) -> Any:
    return dict(
        await console.database.owner.fetchrow("SELECT * FROM lockkeeper.tasks WHERE id = $1::text::uuid", task_id)
    )


@pytest.mark.parametrize("attempt_status", ["leased", "submitted", "running"])
async def test_cancelling_asks_for_the_end_of_the_run(console: Console, attempt_status: str) -> None:
    """C-01: also between the claim and the call that starts the run."""
    await console.make_agent()
    heard: dict[Channel, list[str]] = {}
    listener = Listener(
        console.database.url("dispatcher"), None,
        {each: lambda ids, each=each: heard.setdefault(each, []).extend(ids or ()) for each in
         (Channel.TASK_READY, Channel.CANCEL_REQUESTED)},
        name="test-listen",
    )  # fmt: skip
    await listener.open()
    await until(lambda: listener.is_live)
    task_id, attempt_id = await stage(console.database.owner, "processing", attempt_status)
    task = await console.post(f"/tasks/{task_id}/cancel")
    TaskDetail.model_validate(task)
    assert (task["status"], task["attempts"][0]["status"]) == ("cancelled", "cancelled")
    assert task["attempts"][0]["cancel_requested_at"] is not None
    assert task["events"][-1]["verb"] == "cancel"
    assert task["events"][-1]["actor"] == "local"
    row = await frozen(console, task_id)
    assert (row["locked_by"], row["lease_expires_at"], row["reserved_tpm"]) == (None, None, 0)
    await until(lambda: heard.get(Channel.CANCEL_REQUESTED) == [str(attempt_id)])
    await until(lambda: heard.get(Channel.TASK_READY) == ["reader"])
    await listener.close()


async def test_a_waiting_task_is_cancelled_without_a_run(console: Console) -> None:
    await console.make_agent()
    task_id, _ = await stage(console.database.owner, "enqueued", "released")
    task = await console.post(f"/tasks/{task_id}/cancel")
    assert task["status"] == "cancelled"
    assert task["attempts"][0]["status"] == "cancelled"
    assert task["attempts"][0]["cancel_requested_at"] is None
    lost, _ = await stage(console.database.owner, "enqueued", "lost")
    assert (await console.post(f"/tasks/{lost}/cancel"))["attempts"][0]["status"] == "lost"


@pytest.mark.parametrize("status", TERMINAL)
async def test_a_terminal_row_is_never_touched(console: Console, status: str) -> None:
    await console.make_agent()
    task_id, _ = await stage(console.database.owner, status, "failed")
    before = await frozen(console, task_id)
    refused = await console.post(f"/tasks/{task_id}/cancel", 409)
    assert refused["state"] == {"status": status, "version": 1}
    assert status in refused["detail"]
    await console.call("PATCH", f"/tasks/{task_id}", 409, json={"priority": 1})
    copy = await console.post(f"/tasks/{task_id}/reprocess")
    if status == "completed":
        await console.post(f"/tasks/{task_id}/retry", 409)
    else:
        again = await console.post(f"/tasks/{task_id}/retry")
        assert again["id"] == copy["id"]
    assert await frozen(console, task_id) == before
    assert (copy["status"], copy["source_task_id"], copy["attempt"]) == ("enqueued", task_id, 0)
    assert (copy["input"], copy["labels"], copy["customer"]) == ({"a": 1}, {"l": "1"}, "C")
    assert (await console.get(f"/tasks/{task_id}"))["redone_by"] == [copy["id"]]


async def test_twenty_clicks_on_retry_make_one_copy(console: Console) -> None:
    await console.make_agent()
    task_id, _ = await stage(console.database.owner, "failed")
    answers = await asyncio.gather(*(console.http.post(f"{API}/tasks/{task_id}/retry") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await console.database.owner.fetchval("SELECT count(*) FROM lockkeeper.tasks") == 2
    assert len((await console.get("/audit"))["entries"]) == 2  # the agent and the one retry


async def test_retry_lets_a_task_in_backoff_start_now(console: Console) -> None:
    await console.make_agent()
    task_id, _ = await stage(console.database.owner, "enqueued")
    await console.post(f"/tasks/{task_id}/retry", 409)
    await console.database.owner.execute(
        "UPDATE lockkeeper.tasks SET available_at = now() + interval '1 hour', deferred = true"
    )
    task = await console.post(f"/tasks/{task_id}/retry")
    assert task["id"] == task_id
    assert task["waiting"]["reason"] == "next"
    running, _ = await stage(console.database.owner, "processing")
    await console.post(f"/tasks/{running}/retry", 409)
    await console.post(f"/tasks/{running}/reprocess", 409)


async def test_reprocess_with_another_agent(console: Console) -> None:
    await console.make_agent()
    await console.make_agent("writer", max_attempts=9)
    task_id, _ = await stage(console.database.owner, "completed")
    copy = await console.post(f"/tasks/{task_id}/reprocess", json={"agent": "writer"})
    assert (copy["agent"], copy["max_attempts"]) == ("writer", 9)
    assert (await console.post(f"/tasks/{task_id}/reprocess", 422, json={"agent": "none"}))["reason"] == "unknown_agent"
    assert (await console.post(f"/tasks/{uuid.uuid4()}/reprocess", 404))["status"] == 404


async def test_priority_is_changed_and_recorded(console: Console) -> None:
    await console.make_agent()
    task = await console.enqueue()
    changed = await console.call("PATCH", f"/tasks/{task['id']}", json={"priority": 90})
    assert (changed["priority"], changed["version"]) == (90, 2)
    await console.call("PATCH", f"/tasks/{task['id']}", json={"priority": 90})
    audit = await console.get("/audit", params={"target": f"task/{task['id']}"})
    AuditPage.model_validate(audit)
    (entry,) = audit["entries"]
    assert (entry["action"], entry["before"]["priority"], entry["after"]["priority"]) == ("reprioritise", 50, 90)


async def test_bulk_counts_first_and_then_acts_in_batches(console: Console) -> None:
    await console.make_agent()
    await console.database.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, customer, created_at) SELECT 'reader', 'A', now() - n * interval '1 second' "
        "FROM generate_series(1, 450) n"
    )
    kept = await console.enqueue(customer="B")
    done, _ = await stage(console.database.owner, "completed")
    body = {"action": "cancel", "filter": {"customer": "A"}, "dry_run": True}
    dry = await console.post("/tasks/bulk", json=body)
    BulkAnswer.model_validate(dry)
    assert (dry["matched"], dry["changed"]) == (450, 0)
    wet = await console.post("/tasks/bulk", json={**body, "dry_run": False})
    assert (wet["matched"], wet["changed"]) == (450, 450)
    assert (await console.get(f"/tasks/{kept['id']}"))["status"] == "enqueued"
    assert (await console.get(f"/tasks/{done}"))["status"] == "completed"
    again = await console.post("/tasks/bulk", json={"action": "retry", "filter": {"customer": "A"}})
    assert (again["matched"], again["changed"]) == (450, 450)
    higher = {"action": "reprioritise", "filter": {"status": "enqueued"}, "priority": 60}
    assert (await console.post("/tasks/bulk", json=higher))["changed"] == 451
    by_id = {"action": "cancel", "filter": {"id": [kept["id"]]}}
    assert (await console.post("/tasks/bulk", json=by_id))["changed"] == 1
    for wrong in ({"action": "cancel", "filter": {}}, {"action": "cancel", "filter": {"colour": "red"}},
                  {"action": "reprioritise", "filter": {"agent": "reader"}}, {"action": "delete", "filter": {}}):  # fmt: skip
        await console.post("/tasks/bulk", 422, json=wrong)


async def test_cancel_races_with_the_claim_and_somebody_wins_cleanly(console: Console) -> None:
    await console.make_agent()
    owner = console.database.owner
    for _ in range(10):
        task = await console.enqueue()
        attempt = uuid.uuid4()
        transaction = owner.transaction()
        await transaction.start()
        await owner.execute(
            "UPDATE lockkeeper.tasks SET status = 'processing', attempt = 1, attempt_id = $2, version = version + 1, "
            "verb = 'claim', lease_expires_at = now() + interval '1 minute' WHERE id = $1::text::uuid",
            task["id"], attempt,
        )  # fmt: skip
        await owner.execute(
            "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at) "
            "VALUES ($2, $1::text::uuid, 'reader', 1, 'leased', now())",
            task["id"], attempt,
        )  # fmt: skip
        cancelling = asyncio.create_task(console.http.post(f"{API}/tasks/{task['id']}/cancel"))
        await until(lambda: _is_blocked(console))
        await transaction.commit()
        cancelled = (await cancelling).json()
        assert cancelled["status"] == "cancelled"
        assert cancelled["attempts"][0]["cancel_requested_at"] is not None


async def _is_blocked(console: Console) -> bool:
    watcher = await asyncpg.connect(console.database.url())
    try:
        return bool(
            await watcher.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'test-console' AND wait_event_type = 'Lock'"
            )
        )
    finally:
        await watcher.close()
