"""Handing attempts to the runner: once, whatever is lost, refused or slow on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

import pytest

from shared.db.invariants import violations
from shared.testing.rows import make_agent, make_tasks
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.integration.dispatcher.conftest import Dispatcher
from tests.support.workspace import WorkspaceDouble

Make = Callable[..., Dispatcher]
HOLD = {"state": "PENDING", "when": "before"}


async def task_row(database: TestDatabase, task: UUID) -> dict[str, object]:
    row = await database.owner.fetchrow(
        "SELECT t.status, t.attempt, t.verb, t.reason, t.error, x.status AS attempt_status, x.run_id, x.id AS attempt_id, "
        "t.available_at > lockkeeper.clock() AS later, t.lease_expires_at > lockkeeper.clock() AS leased "
        "FROM lockkeeper.tasks t LEFT JOIN lockkeeper.task_attempts x ON x.id = t.attempt_id WHERE t.id = $1",
        task,
    )
    assert row is not None
    return dict(row)


def runs_of(workspace: WorkspaceDouble, attempt: object) -> list[int]:
    return [
        run["run_id"]
        for run in workspace.runs()
        if {"name": "attempt_id", "value": str(attempt)} in [
            {"name": each["name"], "value": each.get("value")} for each in run.get("job_parameters", [])
        ]
    ]  # fmt: skip


@pytest.fixture
async def job(database: TestDatabase, workspace: WorkspaceDouble) -> str:
    """A saved job whose runs wait for ever, and its agent."""
    name = f"parser-{database.name}"
    workspace.make_job(name)
    workspace.fault("run", "hold", **HOLD)
    await make_agent(database.owner, target=name)
    return name


async def test_an_attempt_becomes_a_run_that_carries_its_ids(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    (task,) = await make_tasks(database.owner)
    dispatcher = make_dispatcher()
    assert await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    row = await task_row(database, task)
    assert (row["status"], row["attempt_status"], row["verb"], row["leased"]) == (
        "processing",
        "submitted",
        "submit",
        True,
    )
    assert runs_of(workspace, row["attempt_id"]) == [row["run_id"]]
    assert await violations(database.owner) == []


async def test_whom_a_note_names_is_served_without_a_look_and_takes_nobodys_turn(
    database: TestDatabase, make_dispatcher: Make, job: str
) -> None:
    await make_agent(database.owner, "other", target=job)
    dispatcher = make_dispatcher(submit_threads=1, submit_ahead=1)
    assert not await dispatcher.claim.run_once()
    (named,), (urgent,) = await make_tasks(database.owner), await make_tasks(database.owner, agent="other", priority=90)
    dispatcher.claim.hear(["parser"])
    assert await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    assert [(await task_row(database, each))["status"] for each in (named, urgent)] == ["processing", "enqueued"]
    (named,) = await make_tasks(database.owner)
    dispatcher.claim.hear(["parser"])
    assert await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    assert [(await task_row(database, each))["status"] for each in (named, urgent)] == ["enqueued", "processing"]


@pytest.mark.parametrize("fault", ["drop_after_effect", "status_after_effect"])
async def test_d01_a_lost_answer_starts_no_second_run(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str, fault: str
) -> None:
    (task,) = await make_tasks(database.owner)
    workspace.fault("jobs.run_now", fault, status=503, times=1)
    dispatcher = make_dispatcher()
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    row = await task_row(database, task)
    assert row["attempt_status"] == "submitted"
    assert runs_of(workspace, row["attempt_id"]) == [row["run_id"]]


async def test_d01_another_replica_asks_with_the_same_token_after_a_crash(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    """The first dispatcher dies between the call and the write of its answer."""
    (task,) = await make_tasks(database.owner)
    dead = make_dispatcher("dead")
    (leased,) = await dead.storage.claim_tasks(1, 60)
    first_run = await asyncio.to_thread(
        lambda: workspace.http.post(
            "/api/2.2/jobs/run-now",
            json={
                "job_id": workspace.http.get("/api/2.2/jobs/list", params={"name": job}).json()["jobs"][0]["job_id"],
                "idempotency_token": str(leased.attempt_id),
                "job_parameters": {"task_id": str(leased.task_id), "attempt_id": str(leased.attempt_id)},
            },
        ).json()["run_id"]
    )
    other = make_dispatcher("other")
    await other.take_over.run_once()
    await other.settle_down()
    row = await task_row(database, task)
    assert (row["attempt_status"], row["run_id"], row["attempt"]) == ("submitted", first_run, 1)
    assert runs_of(workspace, leased.attempt_id) == [first_run]


async def test_an_unanswered_submission_is_asked_again_with_its_token(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    (task,) = await make_tasks(database.owner)
    rule = workspace.fault("jobs.run_now", "drop_after_effect")
    dispatcher = make_dispatcher(retry_seconds=1, http_seconds=2)
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    row = await task_row(database, task)
    assert (row["status"], row["attempt_status"]) == ("processing", "leased")
    workspace.http.delete(f"/faults/{rule}")

    async def asked_again() -> bool:
        await dispatcher.take_over.run_once()
        await dispatcher.settle_down()
        return (await task_row(database, task))["attempt_status"] == "submitted"

    await until(asked_again, seconds=15, every=0.2)
    row = await task_row(database, task)
    assert runs_of(workspace, row["attempt_id"]) == [row["run_id"]]


@pytest.mark.parametrize("status", [429, 503])
async def test_d06_a_throttled_submission_waits_without_spending_its_attempt(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str, status: int
) -> None:
    (task,) = await make_tasks(database.owner)
    workspace.fault("jobs.run_now", "status", status=status, retry_after="1")
    dispatcher = make_dispatcher(retry_seconds=1, http_seconds=2)
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    row = await task_row(database, task)
    assert (row["status"], row["attempt_status"], row["attempt"], row["later"]) == ("enqueued", "released", 1, True)
    reason = await database.owner.fetchval("SELECT reason FROM lockkeeper.waiting($1)", task)
    assert reason == "backoff"
    workspace.mend()
    workspace.fault("run", "hold", **HOLD)

    async def submitted() -> bool:
        await dispatcher.claim.run_once()
        await dispatcher.settle_down()
        return (await task_row(database, task))["attempt_status"] == "submitted"

    await until(submitted, seconds=20, every=0.2)
    again = await task_row(database, task)
    assert (again["attempt"], again["attempt_id"]) == (1, row["attempt_id"])
    assert runs_of(workspace, row["attempt_id"]) == [again["run_id"]]
    assert await violations(database.owner) == []


async def test_r03_fifty_refused_submissions_leave_the_whole_budget(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    await database.owner.execute("UPDATE lockkeeper.agents SET max_concurrent_tasks = 50, max_tpm = 500")
    await make_tasks(database.owner, 50, estimated_tokens=10)
    workspace.fault("jobs.run_now", "status", status=400, error_code="INVALID_PARAMETER_VALUE", message="no such job")
    dispatcher = make_dispatcher(submit_threads=8, submit_ahead=10)
    while await dispatcher.claim.run_once():
        await dispatcher.settle_down()
    states = await database.owner.fetch(
        "SELECT status, error ->> 'reason' AS reason, count(*) FROM lockkeeper.tasks GROUP BY 1, 2"
    )
    assert [(row["status"], row["reason"], row["count"]) for row in states] == [
        ("failed", "invalid_parameter_value", 50)
    ]
    room = await database.owner.fetchrow("SELECT slots, tokens_left FROM lockkeeper.agent_headroom")
    assert room is not None
    assert (room["slots"], room["tokens_left"]) == (50, 500)
    assert await violations(database.owner) == []


async def test_an_unknown_job_fails_the_task_with_the_reason(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make
) -> None:
    await make_agent(database.owner, target="nobody-saved-this")
    (task,) = await make_tasks(database.owner)
    dispatcher = make_dispatcher()
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    row = await task_row(database, task)
    assert row["status"] == "failed"
    assert row["error"] == {
        "reason": "job_not_found",
        "message": "the runner refused to start nobody-saved-this: no saved job is named nobody-saved-this",
    }


async def test_c01_a_task_cancelled_while_it_is_submitted_has_its_run_cancelled(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    (task,) = await make_tasks(database.owner)
    slow = workspace.fault("jobs.run_now", "delay", seconds=30)
    dispatcher = make_dispatcher()
    await dispatcher.claim.run_once()
    await database.owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'cancelled', finished_at = now(), lease_expires_at = NULL, locked_by = NULL, "
        "reserved_tpm = 0, version = version + 1, verb = 'cancel'"
    )
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET status = 'cancelled', finished_at = now(), cancel_requested_at = now()"
    )
    workspace.http.delete(f"/faults/{slow}")
    await dispatcher.settle_down()
    row = await task_row(database, task)
    assert (row["status"], row["attempt_status"]) == ("cancelled", "cancelled")
    assert row["run_id"] is not None

    async def confirmed() -> object:
        await dispatcher.cancel.run_once()
        return await database.owner.fetchval("SELECT cancel_confirmed_at FROM lockkeeper.task_attempts")

    await until(confirmed, seconds=20, every=0.1)
    run = workspace.http.get("/api/2.2/jobs/runs/get", params={"run_id": row["run_id"]}).json()
    assert run["state"]["life_cycle_state"] == "TERMINATED"
    assert await violations(database.owner) == []


async def test_k03_a_stopping_dispatcher_gives_back_what_it_had_not_asked_for(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    """One call is open, three wait for a thread: the three are free at once, the open one keeps its token."""
    tasks = await make_tasks(database.owner, 4)
    slow = workspace.fault("jobs.run_now", "delay", seconds=30)
    dispatcher = make_dispatcher(submit_threads=1, submit_ahead=4)
    await dispatcher.claim.run_once()
    await until(lambda: dispatcher.submitter.held == 4)
    await asyncio.sleep(0)
    started = time.monotonic()
    await dispatcher.submitter.drain()
    assert time.monotonic() - started < 10
    states = sorted([str((await task_row(database, task))["status"]) for task in tasks])
    assert states == ["enqueued", "enqueued", "enqueued", "processing"]
    workspace.http.delete(f"/faults/{slow}")
    other = make_dispatcher("other")
    await other.take_over.run_once()
    await other.claim.run_once()
    await other.settle_down()
    rows = [await task_row(database, task) for task in tasks]
    assert {row["attempt_status"] for row in rows} == {"submitted"}
    assert {row["attempt"] for row in rows} == {1}
    for row in rows:
        assert len(runs_of(workspace, row["attempt_id"])) == 1
    assert await violations(database.owner) == []


async def test_d05_a_throttling_runner_never_blocks_the_event_loop(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    await make_tasks(database.owner, 8)
    await make_dispatcher("warm").storage.promote_due(1)
    workspace.fault("jobs.run_now", "status", status=429, retry_after="1")
    dispatcher = make_dispatcher(retry_seconds=3, http_seconds=2)
    await dispatcher.claim.run_once()
    worst = 0.0
    while dispatcher.submitter.held:
        due = time.monotonic() + 0.02
        await asyncio.sleep(0.02)
        worst = max(worst, time.monotonic() - due)
    # The SDK's import, once per process, holds the interpreter for moments; its sleeps must not.
    assert worst < 1.0


async def test_d07_only_ids_travel_as_parameters(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    (task,) = await make_tasks(database.owner, input={"options": "\U0001f6a2" * 20_000})
    dispatcher = make_dispatcher()
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    row = await task_row(database, task)
    (run,) = [each for each in workspace.runs() if each["run_id"] == row["run_id"]]
    given = {each["name"]: each["value"] for each in run["job_parameters"]}
    assert given == {"task_id": str(task), "attempt_id": str(row["attempt_id"]), "pack_id": ""}


async def test_q08_no_transaction_is_open_while_the_runner_is_asked(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    await make_tasks(database.owner, 4)
    workspace.fault("jobs.run_now", "delay", seconds=1.5)
    dispatcher = make_dispatcher()
    await dispatcher.claim.run_once()
    looks = 0
    while dispatcher.submitter.held:
        open_for_long = await database.owner.fetch(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND xact_start < clock_timestamp() - interval '0.5 seconds'"
        )
        assert open_for_long == []
        looks += 1
        await asyncio.sleep(0.05)
    assert looks > 10
