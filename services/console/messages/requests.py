"""Bodies that clients send. A field that nobody knows is refused, so that a typing slip is seen at once."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

AgentName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Customer = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Gather = Literal["all_completed", "any_completed", "all_ended"]
Priority = Annotated[int, Field(ge=0, le=100)]
MaxAttempts = Annotated[int, Field(ge=1, le=100)]
Dollars = Annotated[Decimal, Field(ge=0, max_digits=18, decimal_places=6)]
Weight = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
LabelValue = Annotated[str, StringConstraints(max_length=200)]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=32)]


class Request(BaseModel):
    """Refuses unknown fields, and numbers given as text."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChildRequest(Request):
    """A new task that belongs to a parent: an agent, and a document or an input for it."""

    agent: AgentName
    document_id: UUID | None = None
    input: dict[str, Any] | None = Field(default=None, description="JSON for the agent, beside or without a document")
    customer: Customer | None = None
    priority: Annotated[Priority, Field(strict=True)] = 50
    available_at: AwareDatetime | None = Field(default=None, description="not before this instant")
    max_attempts: Annotated[MaxAttempts, Field(strict=True)] | None = None
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_work(self) -> Self:
        if self.document_id is None and self.input is None and getattr(self, "gather", None) is None:
            raise ValueError("a task needs a document_id or an input")
        return self


class EnqueueRequest(ChildRequest):
    """A new task: an agent, and a document or an input for it; or a parent with its children."""

    idempotency_key: Key | None = Field(default=None, description="the same key and body give the same task")
    parent_task_id: UUID | None = Field(default=None, description="a parent that has not ended")
    gather: Gather | None = Field(
        default=None,
        description="makes it a parent, which has no work of its own: it completes when all its children completed, "
        "when any did, or whatever became of them once all have ended; else it fails",
    )
    children: list[ChildRequest] = Field(default_factory=list, max_length=500)

    @model_validator(mode="after")
    def _is_one_of_a_family(self) -> Self:
        if self.children and self.gather is None:
            raise ValueError("children belong to a parent, which needs gather")
        if self.gather is not None and (self.parent_task_id is not None or self.available_at is not None):
            raise ValueError("a parent has no parent and no start time")
        return self


class ReprocessRequest(Request):
    """Do an ended task anew, perhaps with another agent."""

    agent: AgentName | None = None


class ChangeTaskRequest(Request):
    """What can be changed on a task that has not ended."""

    priority: Annotated[Priority, Field(strict=True)]


class BulkRequest(Request):
    """One action on every task that the filter means and whose state allows it."""

    action: Literal["cancel", "retry", "reprocess", "reprioritise"]
    filter: dict[str, str | list[str] | None] = Field(
        description='the filters of the list, or `reason`, for example {"status": "failed", "reason": "no_text"}; '
        '{"all": "true"} means all'
    )
    dry_run: bool = False
    priority: Priority | None = None
    agent: AgentName | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> BulkRequest:
        if (self.action == "reprioritise") != (self.priority is not None):
            raise ValueError("priority belongs to the action reprioritise, and only to it")
        if self.agent is not None and self.action != "reprocess":
            raise ValueError("agent belongs to the action reprocess, and only to it")
        return self


class AgentRequest(Request):
    """An agent's settings. Fields that are left out keep their value, or start with the default."""

    target: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = Field(
        default=None, description="the saved job: its id or its name; needed to make an agent"
    )
    description: Annotated[str, StringConstraints(max_length=2000)] | None = None
    max_concurrent_tasks: int | None = Field(default=None, ge=0, le=1_000_000, description="null: no such limit")
    max_tpm: int | None = Field(default=None, ge=0, le=10**15, description="tokens per minute; null: no such limit")
    lease_seconds: int | None = Field(default=None, ge=5, le=86_400)
    max_attempts: MaxAttempts | None = None
    expected_seconds: int | None = Field(default=None, ge=1, le=604_800)
    max_run_seconds: int | None = Field(default=None, ge=10, le=2_592_000)
    default_tokens: int | None = Field(default=None, ge=1, le=10**12)
    tokens_per_page: int | None = Field(default=None, ge=1, le=10**9)
    backfill: bool | None = Field(default=None, description="smaller tasks may go before one that waits for room")
    backfill_limit: int | None = Field(default=None, ge=1, le=1000, description="so many may overtake one task")
    fair_share: bool | None = Field(default=None, description="customers take turns inside a priority")
    customer_weights: Annotated[dict[Customer, Weight], Field(max_length=1000)] | None = Field(
        default=None, description="with fair_share: {customer: weight}; 1 for whoever is not named"
    )
    daily_budget: Dollars | None = Field(default=None, description="US dollars in a UTC day; null: no such budget")
    monthly_budget: Dollars | None = Field(default=None, description="US dollars in a UTC month; null: no such budget")
    expected_cost: Dollars | None = Field(
        default=None, description="what a task is reserved with until costs of this agent are known"
    )
    circuit_failures: int | None = Field(
        default=None, ge=1, le=100, description="different tasks that fail in a row stop the agent; null: never"
    )
    circuit_seconds: int | None = Field(default=None, ge=1, le=86_400, description="how long until one task is tried")
    learn_estimates: bool | None = Field(default=None, description="what was measured replaces the defaults")
    tasks_per_run: int | None = Field(default=None, ge=1, le=100, description="attempts that one job run may carry")
    paused: bool | None = None
    options: dict[str, Any] | None = None
    version: int | None = Field(default=None, ge=0, description="the version that was read; 409 when it is not current")
    note: Annotated[str, StringConstraints(max_length=500)] | None = Field(
        default=None, description="why; stands in the audit"
    )


NULLABLE_LIMITS = frozenset({"max_concurrent_tasks", "max_tpm", "daily_budget", "monthly_budget", "circuit_failures"})
"""Where an agent's null means something; any other null means: as it is."""


class CustomerRequest(Request):
    """A customer's budgets over all agents. What is left out keeps its value; null means no such budget."""

    daily_budget: Dollars | None = Field(default=None, description="US dollars in a UTC day")
    monthly_budget: Dollars | None = Field(default=None, description="US dollars in a UTC month")
    version: int | None = Field(default=None, ge=0, description="the version that was read; 409 when it is not current")


class RefreshRequest(BaseModel):
    """Ask the billing tables about runs in [from, to); without a range, about the last 30 days."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    from_at: AwareDatetime | None = Field(default=None, alias="from")
    to_at: AwareDatetime | None = Field(default=None, alias="to")
