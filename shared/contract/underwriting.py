"""What the underwriter's two services agree on: names in Temporal, ids, and the bodies that cross.

Payloads hold ids and small numbers; whatever describes the applicant stays in Lakebase and is read there.
Ids are derived, never drawn, so that a step that runs twice writes the same rows twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

WORKFLOW = "LoanUnderwritingWorkflow"
TASK_QUEUE = "lockkeeper-underwriting"
DECIDE_UPDATE = "decide"
DECIDE_SIGNAL = "review_decision"
STATE_ATTRIBUTE = "LockkeeperState"
PURPOSE_ATTRIBUTE = "LockkeeperPurpose"
TURN_ATTRIBUTE = "LockkeeperTurn"

TERMINAL_STATES = frozenset({"completed", "failed", "cancelled", "expired"})


class RunState(StrEnum):
    """Where a run is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    AWAITING_REVIEW = "awaiting_review"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Tool(StrEnum):
    """The tools that gather evidence."""

    CREDIT_CHECK = "credit_check"
    INCOME_VERIFICATION = "income_verification"
    DEBT_TO_INCOME = "debt_to_income_calc"
    POLICY_LOOKUP = "policy_lookup"


Purpose = Literal["home_purchase", "home_improvement", "auto", "debt_consolidation", "personal", "small_business"]
Verdict = Literal["approve", "refer", "deny"]
DecisionWord = Literal["approve", "deny", "request_more_info"]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Message(BaseModel):
    """A body that crosses: unknown fields are refused, so that a slip is seen at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LoanRequest(Message):
    """What a person asks for. Stated figures are the applicant's own word; the tools look for better ones."""

    user: Name
    applicant: Name
    amount: Decimal = Field(gt=0, le=Decimal(10**9), max_digits=12, decimal_places=2)
    purpose: Purpose
    stated_annual_income: Decimal | None = Field(default=None, ge=0, le=Decimal(10**9))
    stated_monthly_debt: Decimal | None = Field(default=None, ge=0, le=Decimal(10**9))
    model: str = Field(default="rule-based-stand-in", min_length=1, max_length=200)
    turn_limit: int = Field(default=5, ge=1, le=100)
    four_eyes: bool = Field(default=False, description="an approval needs two people, neither of them the user")


class Pace(Message):
    """How long a run waits for what; a worker that dies is noticed after the heartbeat times."""

    remind_after: timedelta = timedelta(days=3)
    expire_after: timedelta = timedelta(days=30)
    tool_heartbeat: timedelta = timedelta(seconds=5)
    model_heartbeat: timedelta = timedelta(seconds=10)
    continue_after_events: int = Field(default=4_000, ge=20, description="history length that starts a new one")


class RunStart(Message):
    """The workflow's input. `carried` is set by the workflow itself when it continues as new."""

    run_id: UUID
    requester: str
    purpose: str
    turn_limit: int
    four_eyes: bool
    pace: Pace = Pace()
    search_attributes: bool = False
    carried: Carried | None = None


class Decision(Message):
    """What a reviewer says about one review of one turn."""

    decision_id: UUID
    review_id: UUID
    decision: DecisionWord
    reviewer: Name
    note: str = Field(default="", max_length=4_000)


class Receipt(Message):
    """What an accepted decision did: it decided the review, or is the first of two approvals."""

    decision_id: UUID
    effect: Literal["decided", "first_approval"]
    turn: int


class Carried(Message):
    """What a run takes along when its history is cut: where it stands, and which decisions it has seen."""

    turn: int = 0
    seq: int = 0
    awaiting: bool = False
    opened_at: datetime | None = None
    reminded: bool = False
    question_id: UUID | None = None
    receipts: tuple[Receipt, ...] = ()
    approvals: tuple[Decision, ...] = ()


class Refusal(StrEnum):
    """Why a decision changes nothing; the words of the API and of the record."""

    STALE_REVIEW = "stale_review"
    ALREADY_DECIDED = "already_decided"
    TURN_LIMIT_REACHED = "turn_limit_reached"
    SAME_REVIEWER = "same_reviewer"
    OWN_REQUEST = "own_request"
    RUN_ENDED = "run_ended"
    RUN_CANCELLING = "run_cancelling"


def workflow_id(run_id: UUID) -> str:
    """The workflow of a run; one for ever, so that a start that is sent twice starts once."""
    return f"underwriting-{run_id}"


def review_id(run_id: UUID, turn: int) -> UUID:
    """The review of one turn."""
    return uuid5(run_id, f"review:{turn}")


def tool_call_id(run_id: UUID, turn: int, position: int) -> UUID:
    """One tool call of one turn."""
    return uuid5(run_id, f"tool:{turn}:{position}")


def message_id(run_id: UUID, turn: int, position: int) -> UUID:
    """One message of one turn."""
    return uuid5(run_id, f"message:{turn}:{position}")


def event_id(run_id: UUID, name: str, key: object) -> UUID:
    """One event; `key` tells apart events of the same name."""
    return uuid5(run_id, f"event:{name}:{key}")


def step_id(run_id: UUID, activity: str, key: object) -> UUID:
    """One step of the record that has no id of its own."""
    return uuid5(run_id, f"step:{activity}:{key}")


def metric_id(run_id: UUID, step: UUID, fence: int) -> UUID:
    """One attempt of one step."""
    return uuid5(run_id, f"metric:{step}:{fence}")


RunStart.model_rebuild()
