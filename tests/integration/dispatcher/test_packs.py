"""Several attempts in one run: one token, stored before the call; one attempt's end leaves the others alone."""

from __future__ import annotations

from typing import Any

import pytest

from shared.db.invariants import violations
from shared.testing.rows import make_agent, make_tasks
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.integration.dispatcher.test_submit import HOLD, Make
from tests.support.workspace import WorkspaceDouble

ATTEMPTS = (
    "SELECT x.id, x.task_id, x.status, x.run_id, x.pack_id, x.cancel_confirmed_at, t.status AS task_status, t.attempt "
    "FROM lockkeeper.task_attempts x JOIN lockkeeper.tasks t ON t.id = x.task_id ORDER BY t.created_at"
)


@pytest.fixture
async def job(database: TestDatabase, workspace: WorkspaceDouble) -> str:
    """A saved job whose runs wait for ever, and its agent that packs five tasks into a run."""
    name = f"packer-{database.name}"
    workspace.make_job(name)
    workspace.fault("run", "hold", **HOLD)
    await make_agent(database.owner, target=name, tasks_per_run=5)
    return name


def parameters(workspace: WorkspaceDouble, run_id: int) -> dict[str, str]:
    run = next(run for run in workspace.runs() if run["run_id"] == run_id)
    return {each["name"]: each.get("value", "") for each in run["job_parameters"]}


async def cancel(database: TestDatabase, task: object) -> None:
    await database.owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'cancelled', finished_at = now(), lease_expires_at = NULL, locked_by = NULL, "
        "reserved_tpm = 0, version = version + 1, verb = 'cancel' WHERE id = $1",
        task,
    )
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET status = 'cancelled', finished_at = now(), cancel_requested_at = now() "
        "WHERE task_id = $1",
        task,
    )


async def test_tasks_of_an_agent_that_packs_share_runs_whose_parameters_are_ids(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    await make_tasks(database.owner, 7)
    dispatcher = make_dispatcher(submit_threads=8, submit_ahead=2)
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    rows = await database.owner.fetch(ATTEMPTS)
    assert {row["status"] for row in rows} == {"submitted"}
    runs = {row["run_id"]: row["pack_id"] for row in rows}
    assert sorted(sum(row["run_id"] == run for row in rows) for run in runs) == [2, 5]
    for run, pack in runs.items():
        given = parameters(workspace, run)
        assert (given["pack_id"], given["attempt_id"], given["task_id"]) == (str(pack), "", "")
    assert await violations(database.owner) == []


async def test_d01_another_replica_asks_for_the_whole_pack_with_its_token(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    """The answer is lost and the dispatcher is gone: whoever takes over, in two parts, finds the one run."""
    await make_tasks(database.owner, 4)
    rule = workspace.fault("jobs.run_now", "drop_after_effect")
    dead = make_dispatcher("dead", retry_seconds=1, http_seconds=2)
    await dead.claim.run_once()
    await dead.settle_down()
    assert {row["status"] for row in await database.owner.fetch(ATTEMPTS)} == {"leased"}
    workspace.http.delete(f"/faults/{rule}")
    other = make_dispatcher("other", submit_threads=3)

    async def known() -> bool:
        await other.take_over.run_once()
        await other.settle_down()
        return {row["status"] for row in await database.owner.fetch(ATTEMPTS)} == {"submitted"}

    await until(known, seconds=20, every=0.2)
    rows = await database.owner.fetch(ATTEMPTS)
    assert len({(row["run_id"], row["pack_id"]) for row in rows}) == 1
    packs = [
        each for each in workspace.runs() if parameters(workspace, each["run_id"])["pack_id"] == str(rows[0]["pack_id"])
    ]
    assert len(packs) == 1


async def test_d06_a_throttled_pack_goes_back_whole_and_keeps_its_token(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    await make_tasks(database.owner, 3)
    workspace.fault("jobs.run_now", "status", status=429, retry_after="1")
    dispatcher = make_dispatcher(retry_seconds=1, http_seconds=2)
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    before = await database.owner.fetch(ATTEMPTS)
    assert {(row["status"], row["task_status"], row["attempt"]) for row in before} == {("released", "enqueued", 1)}
    workspace.mend()
    workspace.fault("run", "hold", **HOLD)

    async def submitted() -> bool:
        await dispatcher.claim.run_once()
        await dispatcher.settle_down()
        return {row["status"] for row in await database.owner.fetch(ATTEMPTS)} == {"submitted"}

    await until(submitted, seconds=20, every=0.2)
    after = await database.owner.fetch(ATTEMPTS)
    assert [(row["id"], row["pack_id"]) for row in after] == [(row["id"], row["pack_id"]) for row in before]
    assert len({row["run_id"] for row in after}) == 1


async def test_c01_a_cancelled_attempt_ends_the_run_only_with_the_last_that_is_wanted(
    database: TestDatabase, workspace: WorkspaceDouble, make_dispatcher: Make, job: str
) -> None:
    first, second = await make_tasks(database.owner, 2)
    dispatcher = make_dispatcher()
    await dispatcher.claim.run_once()
    await dispatcher.settle_down()
    await cancel(database, first)

    async def state() -> Any:
        await dispatcher.cancel.run_once()
        rows = await database.owner.fetch(ATTEMPTS)
        run = workspace.http.get("/api/2.2/jobs/runs/get", params={"run_id": rows[0]["run_id"]}).json()
        return run["state"]["life_cycle_state"], [row["cancel_confirmed_at"] is not None for row in rows]

    for _ in range(3):
        assert await state() == ("PENDING", [False, False])
    await cancel(database, second)

    async def over() -> bool:
        return bool(await state() == ("TERMINATED", [True, True]))

    await until(over, seconds=20, every=0.1)
    assert await violations(database.owner) == []
