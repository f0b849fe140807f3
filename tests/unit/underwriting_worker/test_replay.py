"""The gate for changes of the workflow: what waits out there must go on under the new code.

The histories were recorded on a real server, one per stage at which a run may wait. Changed code that cannot
replay them would break runs that have been waiting for days, so a change goes behind `workflow.patched`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from services.underwriting_worker.app import PASSED_THROUGH
from services.underwriting_worker.workflows import LoanUnderwritingWorkflow
from shared.vendors.temporal import data_converter
from tests.support.workflow_versions import ExtraStep, OtherOrder, PatchedStep

FILES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def history(file: Path) -> WorkflowHistory:
    content = json.loads(file.read_text(encoding="utf-8"))
    return WorkflowHistory.from_json(content.pop("workflow_id"), content)


def replayer(workflow: type) -> Replayer:
    return Replayer(
        workflows=[workflow],
        data_converter=data_converter(),
        workflow_runner=SandboxedWorkflowRunner(restrictions=PASSED_THROUGH),
    )


def test_every_stage_is_recorded() -> None:
    assert {file.stem for file in FILES} == {
        "approved", "cancelled", "continued", "model_failed", "second_turn_half_approved", "waiting",
    }  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_t_05_runs_that_wait_replay_under_this_code(file: Path) -> None:
    await replayer(LoanUnderwritingWorkflow).replay_workflow(history(file))


@pytest.mark.parametrize("changed", [ExtraStep, OtherOrder])
async def test_t_05_a_change_without_a_marker_is_caught(changed: type) -> None:
    waiting = next(file for file in FILES if file.stem == "waiting")
    with pytest.raises(NondeterminismError):
        await replayer(changed).replay_workflow(history(waiting))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_t_05_a_change_behind_a_marker_passes(file: Path) -> None:
    await replayer(PatchedStep).replay_workflow(history(file))
