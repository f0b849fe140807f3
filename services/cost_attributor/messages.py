"""The values that attribution hands around."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID


class Finding(StrEnum):
    """What is known about an attempt's usage now."""

    FINAL = "final"
    PARTIAL = "partial"
    UNKNOWN = "unknown"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt whose usage is to be found out.

    `usage` is what its agent reported: None when it said nothing, empty when it said that no model was called.
    """

    attempt_id: UUID
    task_id: UUID
    agent: str
    trace_id: str | None
    trace_state: str | None
    usage: list[dict[str, Any]] | None
    ended_seconds: float
    used_at: datetime
    never_ran: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one model, for the price table."""

    model: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger. Without an amount the parts are priced by the table, each by its model and time.

    A line that is not whole may learn of more: its trace never ended, or its agent did not count every model.
    """

    source: str
    record_id: str
    attempt_id: UUID
    task_id: UUID
    kind: str
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    amount: Decimal | None
    used_at: datetime
    parts: list[Part]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Attribution:
    """What was found out about one attempt, and the lines that say it."""

    attempt: EndedAttempt
    finding: Finding
    lines: list[Line]
    disagrees: bool = False


@dataclass(frozen=True, slots=True)
class CostRequest:
    """A person's question for the warehouse's figures of attempts submitted in [from, to)."""

    id: UUID
    from_at: datetime
    to_at: datetime
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of an agent or a customer, and what is spent and reserved of it in the period that began on `begins`."""

    scope: str
    name: str
    period: str
    begins: date
    budget: Decimal
    spent: Decimal
    reserved: Decimal

    @property
    def share(self) -> Decimal:
        """The part of the budget that is spent."""
        return self.spent / self.budget


@dataclass(frozen=True, slots=True)
class Repricing:
    """A person's wish to have usage in [from, to) at the prices of now; `after_attempt` is how far it came."""

    id: UUID
    from_at: datetime
    to_at: datetime
    models: list[str] | None
    after_attempt: UUID | None


@dataclass(frozen=True, slots=True)
class Repriced:
    """What one step of a repricing did; `after_attempt` is None when nothing was left to do."""

    after_attempt: UUID | None
    tasks: list[UUID]
    changed: int


@dataclass(frozen=True, slots=True)
class RunShare:
    """One attempt that a run carried, and how long it took of it. `finished_at` is None while it goes on."""

    run_id: int
    attempt_id: UUID
    task_id: UUID
    submitted_at: datetime
    finished_at: datetime | None
    seconds: Decimal


@dataclass(frozen=True, slots=True)
class RunBill:
    """How much of the bill of a run was found. `ended_at` is None while one of its attempts goes on."""

    run_id: int
    records: int
    submitted_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One row of the bill, priced at the time of its usage; corrections are rows of their own."""

    record_id: str
    run_id: int
    record_type: str
    sku: str
    unit: str
    quantity: Decimal
    unit_price: Decimal | None
    currency: str
    usage_start_at: datetime
    usage_end_at: datetime


@dataclass(frozen=True, slots=True)
class Bill:
    """An attempt's part of one usage record. `amount` is None when the record has no price."""

    record: UsageRecord
    attempt_id: UUID
    task_id: UUID
    quantity: Decimal
    amount: Decimal | None
