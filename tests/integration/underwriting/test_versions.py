from __future__ import annotations

import json
import os
import re
from pathlib import Path
from uuid import UUID

import pytest
from temporalio.api.enums.v1 import RoutingConfigUpdateState
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.service import RPCError

from shared.testing.wait import until
from tests.support.underwriting import FAST, Underwriting, fails
from tests.support.workflow_versions import PatchedStep

DEPLOYMENT = "lockkeeper-underwriting"
HISTORIES = Path(__file__).parents[2] / "unit" / "underwriting_worker" / "histories"


async def test_t_05_runs_that_wait_survive_a_deploy(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
    async with desk.worker(workflow=PatchedStep):
        await desk.decide(run, "request_more_info", note="after the deploy")
        await desk.reaches(run, "awaiting_review", turn=2)
        await desk.decide(run, turn=2)
        assert await desk.handle(run).result() == "approved"
    announced = [event["turn"] for event in await desk.rows("events", run) if event["name"] == "agent.turn_announced"]
    assert announced == [2], "the turn that began under the new version took the new step"


async def test_t_05_two_versions_side_by_side_and_the_waiting_runs_go_over_to_the_newer_one(
    desk: Underwriting,
) -> None:
    """A rolling deploy with Worker Versioning: only the current version is given work, old runs included."""
    async with desk.worker(worker_versioning=True, build_id="one"):
        await make_current(desk, "one")
        waiting = await desk.start()
        await desk.reaches(waiting, "awaiting_review")
        async with desk.worker(workflow=PatchedStep, worker_versioning=True, build_id="two"):
            beside = await desk.start()
            await desk.reaches(beside, "awaiting_review")
            assert await announced(desk, beside) == [], "a version that is not current gets no work"

            await make_current(desk, "two")
            new = await desk.start()
            await desk.reaches(new, "awaiting_review")
            await desk.decide(waiting, "request_more_info", note="after the deploy")
            await desk.reaches(waiting, "awaiting_review", turn=2)
            for run, turn in ((waiting, 2), (beside, 1), (new, 1)):
                await desk.decide(run, turn=turn)
                assert await desk.handle(run).result() == "approved"
    assert [await announced(desk, run) for run in (waiting, beside, new)] == [[2], [], [1]]


async def announced(desk: Underwriting, run: UUID) -> list[int]:
    """Turns that took the newer version's step."""
    return [row["turn"] for row in await desk.rows("events", run, "turn") if row["name"] == "agent.turn_announced"]


async def make_current(desk: Underwriting, build: str) -> None:
    """What a deploy does once the new workers poll: work goes to this version from now on.

    The server takes the order at once and carries it to its task queues afterwards.
    """
    name, service = {"namespace": desk.client.namespace, "deployment_name": DEPLOYMENT}, desk.client.workflow_service
    order = SetWorkerDeploymentCurrentVersionRequest(build_id=build, **name)

    async def carried_out() -> bool:
        try:
            await service.set_worker_deployment_current_version(order)
            state = await service.describe_worker_deployment(DescribeWorkerDeploymentRequest(**name))
        except RPCError:
            return False
        told = state.worker_deployment_info.routing_config_update_state
        return told == RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_COMPLETED

    await until(carried_out, seconds=30, every=0.2)


@pytest.mark.skipif("LOCKKEEPER_TEST_WRITE" not in os.environ, reason="records the histories that replay tests keep")
async def test_record_histories_of_every_stage(desk: Underwriting) -> None:
    async with desk.worker():
        waiting = await desk.start()
        asked = await desk.start(four_eyes=True)
        approved, cancelled = await desk.start(), await desk.start()
        short = await desk.start(pace=FAST.model_copy(update={"continue_after_events": 70}))
        for run in (waiting, asked, approved, cancelled, short):
            await desk.reaches(run, "awaiting_review")
        await desk.decide(asked, "request_more_info", note="Please check the income again.")
        await desk.decide(approved)
        await desk.handle(cancelled).cancel()
        sent = 0
        first = (await desk.handle(short).describe()).run_id
        while (await desk.handle(short).describe()).run_id == first or sent == 0:
            sent += 1
            await desk.signal(short, turn=3)
            await until(lambda count=sent: _recorded(desk, short, count, status="refused"))
        # The new history begins with a step of its own, so that there is something to replay.
        await desk.signal(short, turn=4)
        await until(lambda: _recorded(desk, short, sent + 1, status="refused"))
        await desk.reaches(asked, "awaiting_review", turn=2)
        await desk.decide(asked, turn=2, reviewer="reviewer-1")
        await until(lambda: _recorded(desk, asked, 2))
        await desk.reaches(approved, "completed")
        await desk.reaches(cancelled, "cancelled")
        desk.model.script = [fails(401)]
        referred = await desk.start()
        await desk.reaches(referred, "awaiting_review")
        stages = {
            "waiting": waiting, "second_turn_half_approved": asked, "approved": approved, "cancelled": cancelled,
            "continued": short, "model_failed": referred,
        }  # fmt: skip
        for name, run in stages.items():
            await _write(desk, name, run)


async def _recorded(desk: Underwriting, run: UUID, count: int, status: str = "accepted") -> bool:
    return len([row for row in await desk.rows("agent_review_decisions", run) if row["status"] == status]) == count


async def _write(desk: Underwriting, name: str, run: UUID) -> None:
    history = await desk.handle(run).fetch_history()
    text = json.dumps({"workflow_id": history.workflow_id, **history.to_json_dict()}, indent=1, sort_keys=True)
    text = re.sub(r"\d+@[\w.-]+", "worker", text)
    # A traceback carries the paths of the machine that recorded it, and replay does not read it.
    text = re.sub(r'("stackTrace": )"(?:[^"\\]|\\.)*"', r'\1""', text)
    HISTORIES.mkdir(exist_ok=True)
    (HISTORIES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
