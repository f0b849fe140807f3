"""Expired leases: the runner is asked before anything is started again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from databricks.sdk.service.jobs import Run, RunTask

from services.dispatcher.storage import DispatcherStorage
from services.sweeper.loops import GaugesLoop, SweepLoop
from services.sweeper.policy import judge
from services.sweeper.settings import SweeperSettings
from services.sweeper.storage import SweeperStorage
from shared.db.invariants import violations
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.testing.rows import make_agent, make_tasks
from shared.vendors.jobs import Jobs, describe
from shared.vendors.workspace import Workspace
from tests.conftest import TestDatabase
from tests.support.workspace import WorkspaceDouble

SETTINGS = SweeperSettings(retry_seconds=1, http_seconds=2)


class Sweep:
    """A sweeper turned by hand, and the one attempt that it looks at."""

    def __init__(self, database: TestDatabase, workspace: WorkspaceDouble, pool: Database, name: str = "s") -> None:
        self.database = database
        self.workspace = workspace
        self.vendor = Workspace(threads=4, retry_seconds=1, http_seconds=2)
        self.storage = SweeperStorage(pool, name)
        self.job = 0
        self.loop = SweepLoop(self.storage, Jobs(self.vendor), Notes(pool), SETTINGS)

    async def start(self, *, run_id: int | None = None, attempt: int = 1, max_attempts: int = 3) -> UUID:
        """A task whose run was started and whose lease is over; its id."""
        (task,) = await make_tasks(self.database.owner, max_attempts=max_attempts)
        await self.lease(task, await self.run() if run_id is None else run_id, attempt)
        return task

    async def run(self) -> int:
        """A new run of the job."""

        def post() -> int:
            answer = self.workspace.http.post("/api/2.2/jobs/run-now", json={"job_id": self.job})
            return int(answer.json()["run_id"])

        return await asyncio.to_thread(post)

    async def lease(self, task: UUID, run_id: int, attempt: int = 1) -> None:
        """The task is processing its attempt in this run, and the lease is over."""
        await self.database.owner.execute(
            "WITH x AS (INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, submitted_at, run_id)"
            " VALUES (lockkeeper.uuid7(), $1, 'parser', $3, 'submitted', now(), now(), $2) RETURNING id) "
            ", t AS (UPDATE lockkeeper.tasks t SET status = 'processing', attempt = $3, attempt_id = x.id, locked_by = 'd', "
            "lease_expires_at = now() - interval '1 second', version = version + 1, verb = 'claim' FROM x WHERE t.id = $1 "
            "RETURNING t.*) INSERT INTO lockkeeper.task_events "
            "(task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor) "
            "SELECT id, version, clock_timestamp(), verb, status, attempt, agent, 1, reserved_tpm, session_user FROM t",
            task, run_id, attempt,
        )  # fmt: skip

    async def row(self, task: UUID) -> dict[str, Any]:
        """The task beside its attempt."""
        found = await self.database.owner.fetchrow(
            "SELECT t.*, x.status AS attempt_status, x.error AS attempt_error, x.cancel_requested_at, "
            "t.lease_expires_at > now() AS leased FROM lockkeeper.tasks t "
            "JOIN lockkeeper.task_attempts x ON x.id = t.attempt_id WHERE t.id = $1",
            task,
        )
        assert found is not None
        return dict(found)

    async def ended(self, run_id: int) -> None:
        """Wait until the workspace says that the run is over."""
        while True:
            run = await asyncio.to_thread(
                lambda: self.workspace.http.get("/api/2.2/jobs/runs/get", params={"run_id": run_id}).json()
            )
            if run["state"]["life_cycle_state"] in {"TERMINATED", "SKIPPED", "INTERNAL_ERROR"}:
                return
            await asyncio.sleep(0.05)


@pytest.fixture
async def sweep(database: TestDatabase, workspace: WorkspaceDouble) -> AsyncIterator[Sweep]:
    await make_agent(database.owner, lease_seconds=120)
    pool = await database.open("sweeper")
    sweep = Sweep(database, workspace, pool)
    sweep.job = workspace.make_job(f"sweep-{database.name}")
    yield sweep
    sweep.vendor.close()
    await pool.close()


@pytest.mark.parametrize("state", ["QUEUED", "PENDING", "BLOCKED", "WAITING_FOR_RETRY", "TERMINATING"])
async def test_l08_d03_a_run_that_waits_or_lives_keeps_its_lease(sweep: Sweep, state: str) -> None:
    sweep.workspace.fault("run", "hold", state=state)
    task = await sweep.start()
    await sweep.loop.run_once()
    row = await sweep.row(task)
    assert (row["status"], row["attempt"], row["leased"]) == ("processing", 1, True)


async def test_d03_a_state_nobody_knows_yet_is_not_an_end(sweep: Sweep) -> None:
    sweep.workspace.fault("run", "hold", state="MEDITATING")
    task = await sweep.start()
    await sweep.loop.run_once()
    row = await sweep.row(task)
    assert (row["status"], row["leased"]) == ("processing", True)


@pytest.mark.parametrize(
    ("state", "result", "code", "reason", "status"),
    [
        ("TERMINATED", "SUCCESS", "SUCCESS", "run_ended_silently", "enqueued"),
        ("TERMINATED", "FAILED", "RUN_EXECUTION_ERROR", "run_execution_error", "enqueued"),
        ("TERMINATED", "TIMEDOUT", None, "run_timedout", "enqueued"),
        ("TERMINATED", "CANCELED", "CANCELED", "run_canceled", "enqueued"),
        ("TERMINATED", "CANCELED", "USER_CANCELED", "run_user_canceled", "failed"),
        ("INTERNAL_ERROR", "FAILED", "CLOUD_FAILURE", "run_cloud_failure", "enqueued"),
        ("SKIPPED", None, "SKIPPED", "run_skipped", "enqueued"),
    ],
)
async def test_d03_every_end_of_a_run_ends_the_attempt_with_its_reason(
    sweep: Sweep, state: str, result: str | None, code: str | None, reason: str, status: str
) -> None:
    extra = {name: value for name, value in {"result": result, "code": code}.items() if value is not None}
    sweep.workspace.fault("run", "end", state=state, **extra)
    run_id = await sweep.run()
    await sweep.ended(run_id)
    task = await sweep.start(run_id=run_id)
    await sweep.loop.run_once()
    row = await sweep.row(task)
    assert (row["status"], row["attempt_status"]) == (status, "lost")
    assert row["reason"] == reason
    assert row["attempt_error"]["reason"] == reason
    assert await violations(sweep.database.owner) == []


async def test_a_run_that_was_never_started_does_not_count_as_an_attempt(sweep: Sweep) -> None:
    sweep.workspace.fault("run", "end", state="SKIPPED", code="MAX_CONCURRENT_RUNS_EXCEEDED")
    run_id = await sweep.run()
    await sweep.ended(run_id)
    task = await sweep.start(run_id=run_id, max_attempts=1)
    await sweep.loop.run_once()
    row = await sweep.row(task)
    assert (row["status"], row["spared_attempts"]) == ("enqueued", 1)


async def test_l04_a_poison_task_ends_after_its_last_attempt(sweep: Sweep) -> None:
    sweep.workspace.fault("run", "end", state="TERMINATED", result="FAILED", code="RUN_EXECUTION_ERROR")
    task = await sweep.start(max_attempts=3)
    for attempt in (1, 2, 3):
        if attempt > 1:
            await sweep.lease(task, await sweep.run(), attempt)
        for run in sweep.workspace.runs():
            await sweep.ended(run["run_id"])
        await sweep.loop.run_once()
    row = await sweep.row(task)
    assert (row["status"], row["attempt"], row["error"]["reason"]) == ("failed", 3, "lease_exhausted")
    assert "attempt 3 of 3" in row["error"]["message"]
    await sweep.loop.run_once()
    assert await violations(sweep.database.owner) == []


async def test_a_result_without_a_callback_goes_to_the_receiver(sweep: Sweep) -> None:
    sweep.workspace.fault("run", "die_silently")
    task = await sweep.start()
    attempt = await sweep.database.owner.fetchval("SELECT attempt_id FROM lockkeeper.tasks")
    await sweep.database.owner.execute(
        "INSERT INTO lockkeeper.attempt_results (attempt_id, result) VALUES ($1, $2)", attempt, {"total": "12.00"}
    )
    await sweep.loop.run_once()
    assert await sweep.database.owner.fetchval("SELECT attempt_id FROM lockkeeper.recovered_results") == attempt
    row = await sweep.row(task)
    assert (row["status"], row["leased"]) == ("processing", True)


async def test_a_runner_that_cannot_be_asked_loses_nothing(sweep: Sweep) -> None:
    sweep.workspace.fault("run", "hold", state="RUNNING")
    task = await sweep.start()
    sweep.workspace.fault("jobs.runs_get", "status", status=503)
    await sweep.loop.run_once()
    row = await sweep.row(task)
    assert (row["status"], row["leased"], row["attempt"]) == ("processing", True, 1)


async def test_a_run_that_the_runner_does_not_know_is_lost(sweep: Sweep) -> None:
    task = await sweep.start(run_id=4_242_424_242)
    await sweep.loop.run_once()
    assert (await sweep.row(task))["reason"] == "run_unknown"


async def test_a_run_beyond_its_longest_time_is_given_up_and_cancelled(sweep: Sweep) -> None:
    await sweep.database.owner.execute("UPDATE lockkeeper.agents SET max_run_seconds = 10")
    sweep.workspace.fault("run", "hold", state="RUNNING")
    task = await sweep.start()
    await sweep.database.owner.execute("UPDATE lockkeeper.task_attempts SET submitted_at = now() - interval '1 minute'")
    await sweep.loop.run_once()
    row = await sweep.row(task)
    assert (row["status"], row["reason"]) == ("enqueued", "run_too_long")
    assert row["cancel_requested_at"] is not None


async def test_a_heartbeat_during_the_question_wins(sweep: Sweep) -> None:
    """The lease was extended while the runner was asked: the answer is out of date."""
    task = await sweep.start(run_id=4_242_424_242)
    overdue = await sweep.storage.list_overdue(10)
    await sweep.database.owner.execute("UPDATE lockkeeper.tasks SET lease_expires_at = now() + interval '1 minute'")
    judgement = judge(overdue[0], await sweep.loop._ask(overdue[0].run_id))
    assert await sweep.storage.lose_attempts([(overdue[0].attempt_id, judgement)]) == []
    assert (await sweep.row(task))["status"] == "processing"


async def test_l07_one_sweeper_works_and_the_other_takes_over(sweep: Sweep) -> None:
    pool = await sweep.database.open("sweeper")
    other = SweeperStorage(pool, "other")
    assert await sweep.storage.take_duty("sweep", 60)
    assert not await other.take_duty("sweep", 60)
    await sweep.database.owner.execute("UPDATE lockkeeper.duties SET expires_at = now() - interval '1 second'")
    assert await other.take_duty("sweep", 60)
    assert await sweep.database.owner.fetchval("SELECT term FROM lockkeeper.duties") == 2
    await other.drop_duties()
    assert await sweep.storage.take_duty("sweep", 60)
    await pool.close()


async def test_l07_a_row_that_somebody_holds_does_not_stop_the_sweep_for_ever(sweep: Sweep) -> None:
    await sweep.start(run_id=4_242_424_242)
    async with asyncio.timeout(20):
        async with sweep.database.owner.transaction():
            await sweep.database.owner.execute("SELECT FROM lockkeeper.tasks FOR UPDATE")
            sweeping = asyncio.create_task(sweep.loop.run_once())
            await asyncio.sleep(0)
        await sweeping
    assert await sweep.database.owner.fetchval("SELECT status FROM lockkeeper.tasks") == "enqueued"


async def test_o02_only_the_holder_exports_the_queue(sweep: Sweep) -> None:
    from services.sweeper import metrics

    await make_tasks(sweep.database.owner, 100)
    pool = await sweep.database.open("sweeper")
    holder = GaugesLoop(sweep.storage, SETTINGS)
    standby = GaugesLoop(SweeperStorage(pool, "standby"), SETTINGS)
    await holder.run_once()
    (sample,) = [each for each in metrics.TASKS.collect()[0].samples if each.labels["status"] == "enqueued"]
    assert sample.value == 100
    await standby.run_once()
    assert metrics.TASKS.collect()[0].samples == []
    await pool.close()


async def test_r05_after_an_outage_everything_comes_back_in_parts_and_spread(sweep: Sweep) -> None:
    owner = sweep.database.owner
    await owner.execute("UPDATE lockkeeper.agents SET max_concurrent_tasks = 5, version = version + 1")
    unknown = itertools.count(10**15)
    tasks = [await sweep.start(run_id=next(unknown)) for _ in range(SETTINGS.batch + 20)]
    assert await sweep.loop.run_once()
    assert await owner.fetchval("SELECT count(*) FROM lockkeeper.tasks WHERE status = 'enqueued'") == SETTINGS.batch
    assert not await sweep.loop.run_once()
    rows = await owner.fetch("SELECT status, available_at - now() AS wait FROM lockkeeper.tasks")
    assert {row["status"] for row in rows} == {"enqueued"}
    waits = sorted(row["wait"].total_seconds() for row in rows)
    assert waits[-1] - waits[0] > 0.3
    assert len(rows) == len(tasks)
    await owner.execute("UPDATE lockkeeper.tasks SET available_at = now(), deferred = false")
    pool = await sweep.database.open("dispatcher")
    assert len(await DispatcherStorage(pool, "d").claim_tasks(100, 60)) == 5
    await pool.close()


def test_d09_a_run_and_the_run_of_its_task_are_told_apart() -> None:
    """The first is cancelled, asked about and billed; the second has the output."""
    described = describe(Run(run_id=1, tasks=[RunTask(run_id=2, task_key="agent")]))
    assert (described.run_id, described.task_run_id) == (1, 2)


async def test_l04_a_run_that_dies_gives_back_the_attempts_whose_turn_had_not_come(sweep: Sweep) -> None:
    """One question for the shared run; the attempt that was begun is spent, the others are not."""
    sweep.workspace.fault("run", "end", state="TERMINATED", result="FAILED", code="RUN_EXECUTION_ERROR")
    run_id = await sweep.run()
    await sweep.ended(run_id)
    tasks = [await sweep.start(run_id=run_id, max_attempts=1) for _ in range(3)]
    await sweep.database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET pack_id = '00000000-0000-0000-0000-000000000001', "
        "started_at = CASE WHEN task_id = $1 THEN now() END",
        tasks[0],
    )
    await sweep.loop.run_once()
    rows = [await sweep.row(task) for task in tasks]
    assert [(row["status"], row["spared_attempts"]) for row in rows] == [
        ("failed", 0),
        ("enqueued", 1),
        ("enqueued", 1),
    ]
    assert rows[1]["reason"] == "run_ended_before_turn"
    assert await violations(sweep.database.owner) == []


async def test_l08_attempts_that_wait_in_a_living_run_keep_their_leases_however_long_the_others_take(
    sweep: Sweep,
) -> None:
    sweep.workspace.fault("run", "hold", state="RUNNING")
    await sweep.database.owner.execute("UPDATE lockkeeper.agents SET max_run_seconds = 10")
    run_id = await sweep.run()
    tasks = [await sweep.start(run_id=run_id) for _ in range(2)]
    await sweep.database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET pack_id = '00000000-0000-0000-0000-000000000001', "
        "submitted_at = now() - interval '1 hour', started_at = CASE WHEN task_id = $1 THEN now() END",
        tasks[0],
    )
    await sweep.loop.run_once()
    assert [(await sweep.row(task))["leased"] for task in tasks] == [True, True]
    await sweep.database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET started_at = now() - interval '1 hour' WHERE task_id = $1", tasks[0]
    )
    await sweep.database.owner.execute("UPDATE lockkeeper.tasks SET lease_expires_at = now() - interval '1 second'")
    await sweep.loop.run_once()
    hung, waiting = [await sweep.row(task) for task in tasks]
    assert (hung["attempt_status"], hung["cancel_requested_at"] is not None) == ("lost", True)
    assert (waiting["attempt_status"], waiting["leased"]) == ("submitted", True)
