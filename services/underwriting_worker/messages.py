"""What the workflow hands to its activities and gets back, and the activities by name.

References and small words only: whatever an activity needs to know about the applicant it reads in Lakebase.
The functions at the end are the activities as the workflow names them; `activities` holds what they do.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field
from temporalio import activity

from shared.contract.underwriting import Decision, Message, Receipt, RunState, Tool, Verdict


class Step(Message):
    """Where a step belongs; `round` counts how often it was scheduled anew after a fault that was not its own."""

    run_id: UUID
    turn: int
    round: int = 1


class BeginTurn(Step):
    """A turn starts; `decision_id` names the question that the reviewer asked."""

    seq: int
    decision_id: UUID | None = None


class RunTool(Step):
    """One tool call; `message_id` names the answer that asked for it, None when the plan did."""

    tool: Tool
    position: int
    message_id: UUID | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolDone(Message):
    """A tool call succeeded; `reused` says that an earlier attempt had already done it."""

    tool_call_id: UUID
    reused: bool


class ToolFailed(Step):
    """A tool call has failed for good."""

    tool: Tool
    position: int
    message_id: UUID | None = None
    reason: str
    message: str


class CallModel(Step):
    """One question to the model, at this position of the turn's transcript."""

    position: int
    trouble: str | None = None
    """Why the answer before could not be used, in words for the model."""
    final: bool = False
    """No more tools: a recommendation is due."""


class ToolAsk(Message):
    """A tool that the model asked for."""

    tool: Tool
    arguments: dict[str, Any] = Field(default_factory=dict)


class ModelDone(Message):
    """What the model's answer was; the answer itself stays in Lakebase."""

    message_id: UUID
    asks: tuple[ToolAsk, ...] = ()
    verdict: Verdict | None = None
    trouble: str | None = None
    reused: bool = False


class OpenReview(Step):
    """A review opens; without a message to take the recommendation from, `fallback` says why a person must look."""

    seq: int
    review_id: UUID
    opened_at: datetime
    expires_at: datetime
    message_id: UUID | None = None
    fallback: tuple[str, str] | None = None


class RemindReview(Step):
    """The review has waited long enough to say so again."""

    seq: int
    review_id: UUID
    expires_at: datetime


class RecordDecision(Step):
    """A decision and what became of it."""

    decision: Decision
    path: Literal["update", "signal"]
    receipt: Receipt | None = None
    refusal: tuple[str, str] | None = None


class EndRun(Step):
    """The run ends."""

    seq: int
    state: RunState
    outcome: Literal["approved", "denied", "expired", "cancelled", "failed"]
    error: dict[str, str] | None = None


class NoteEvent(Step):
    """Something happened that the timeline shows."""

    name: str
    key: str
    details: dict[str, Any] = Field(default_factory=dict)


@activity.defn(name="begin_turn")
async def begin_turn(step: BeginTurn) -> None:
    """Open the turn's record and transcript."""
    raise NotImplementedError


@activity.defn(name="credit_check")
async def credit_check(step: RunTool) -> ToolDone:
    """The applicant's credit file."""
    raise NotImplementedError


@activity.defn(name="income_verification")
async def income_verification(step: RunTool) -> ToolDone:
    """The applicant's verified income."""
    raise NotImplementedError


@activity.defn(name="debt_to_income_calc")
async def debt_to_income_calc(step: RunTool) -> ToolDone:
    """Monthly debt over monthly income."""
    raise NotImplementedError


@activity.defn(name="policy_lookup")
async def policy_lookup(step: RunTool) -> ToolDone:
    """The limits of the loan's purpose, held against the evidence."""
    raise NotImplementedError


@activity.defn(name="record_tool_failure")
async def record_tool_failure(step: ToolFailed) -> None:
    """End a tool call as failed."""
    raise NotImplementedError


@activity.defn(name="call_model")
async def call_model(step: CallModel) -> ModelDone:
    """Ask the model."""
    raise NotImplementedError


@activity.defn(name="open_review")
async def open_review(step: OpenReview) -> None:
    """Show the recommendation to the reviewers."""
    raise NotImplementedError


@activity.defn(name="remind_review")
async def remind_review(step: RemindReview) -> None:
    """Remind the reviewers."""
    raise NotImplementedError


@activity.defn(name="record_decision")
async def record_decision(step: RecordDecision) -> None:
    """Keep a decision and what became of it."""
    raise NotImplementedError


@activity.defn(name="note_event")
async def note_event(step: NoteEvent) -> None:
    """Write one event."""
    raise NotImplementedError


@activity.defn(name="end_run")
async def end_run(step: EndRun) -> None:
    """Close the run's record."""
    raise NotImplementedError


TOOLS = {
    Tool.CREDIT_CHECK: credit_check,
    Tool.INCOME_VERIFICATION: income_verification,
    Tool.DEBT_TO_INCOME: debt_to_income_calc,
    Tool.POLICY_LOOKUP: policy_lookup,
}
