"""Answers about costs: groups, the ledger's lines behind a figure, estimates, forecasts."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from services.console.messages.answers import Answer


class CostRow(Answer):
    """What a group of tasks cost. Averages leave out tasks whose cost is pending."""

    key: str | None
    tasks: int
    attempts: int
    pages: int | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    llm_cost: str
    compute_cost: str
    total_cost: str
    retry_cost: str
    superseded_cost: str
    median_llm_cost: str
    median_cost: str
    p95_cost: str
    cost_per_page: str
    pending_tasks: int
    preliminary_tasks: int
    currency: str
    cost_status: str
    compute_status: str
    why: str


class CostPage(Answer):
    """Costs by group."""

    group_by: str
    costs: list[CostRow]
    next_cursor: str | None


class LineRow(Answer):
    """Tokens and amounts of lines by model, or by the outcome of the attempt that they were spent on."""

    key: str | None
    tasks: int
    attempts: int
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    llm_cost: str
    compute_cost: str
    total_cost: str
    retry_cost: str
    superseded_cost: str
    unpriced_lines: int
    currency: str
    why: str


class LinePage(Answer):
    """Costs by model or outcome."""

    group_by: str
    costs: list[LineRow]
    next_cursor: None = None


class RefreshAnswer(Answer):
    """The request that the cost attributor will answer."""

    request_id: UUID


class CostRequest(Answer):
    """How far a refresh is."""

    request_id: UUID
    status: str
    requested_by: str
    requested_at: datetime
    from_at: datetime
    to_at: datetime
    attempts_billed: int | None
    records: int | None
    error: str | None
    finished_at: datetime | None


class LinePrice(Answer):
    """The price that made a line's amount, as it stood then."""

    id: int
    input_price: str
    output_price: str
    cache_read_price: str
    cache_write_price: str
    valid_from: datetime
    valid_to: datetime | None
    note: str
    retired_at: datetime | None


class EarlierLine(Answer):
    """What a line said before."""

    version: int
    amount: str
    currency: str
    quantity: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    priced_by: str | None
    price_id: int | None
    reason: str
    recorded_at: datetime
    replaced_at: datetime


class Line(Answer):
    """One line of the ledger."""

    source: str
    record_id: str
    attempt_id: UUID
    task_id: UUID
    attempt: int | None
    outcome: str | None
    run_id: str | None
    agent: str | None
    customer: str | None
    kind: str
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    quantity: str | None
    unit: str | None
    sku: str | None
    amount: str
    list_amount: str | None
    currency: str
    priced_by: str | None
    price: LinePrice | None
    parts: list[dict[str, Any]] | None
    record_type: str | None
    bill_status: str | None
    usage_start_at: datetime | None
    usage_end_at: datetime | None
    recorded_at: datetime
    version: int
    reason: str
    earlier: list[EarlierLine]


class LineTotal(Answer):
    """What all lines of a figure add up to in one currency."""

    currency: str
    lines: int
    tasks: int
    amount: str
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    unpriced_lines: int


class Why(Answer):
    """The lines behind a figure; the totals are of all of them, not of the page."""

    figure: str
    group_by: str | None
    key: str | None
    totals: list[LineTotal]
    lines: list[Line]
    next_cursor: str | None


class Gap(Answer):
    """Estimate against bill of one agent; the reasons add up to the gap."""

    agent: str
    part: str
    currency: str
    estimate: str
    bill: str
    gap: str
    named_by_trace: str
    not_in_table: str
    older_price: str
    not_billed_yet: str
    no_estimate: str
    corrections: str
    rate: str
    pending_attempts: int
    unpriced_lines: int


class Reconciliation(Answer):
    """Estimates against bills."""

    rows: list[Gap]


class ForecastRow(Answer):
    """What the waiting tasks of an agent will cost, and how many finished tasks say so."""

    agent: str
    currency: str
    waiting_tasks: int
    waiting_tokens: int | None
    llm_forecast: str
    compute_forecast: str
    total_forecast: str
    llm_tasks: int
    compute_tasks: int


class Forecast(Answer):
    """What the backlog will cost."""

    rows: list[ForecastRow]


class BudgetState(Answer):
    """A budget, and what is spent, reserved and left of it. US dollars in a UTC day and month."""

    scope: str
    name: str
    daily_budget: str | None
    monthly_budget: str | None
    spent_today: str | None
    spent_this_month: str | None
    reserved_today: str | None
    reserved_this_month: str | None
    cost_left: str | None
    renewed_at: datetime | None


class BudgetAlert(Answer):
    """That a budget was spent to a share, in the period that began on `begins`."""

    scope: str
    name: str
    period: str
    begins: str
    share: str
    budget: str
    spent: str
    reserved: str
    at: datetime


class Budgets(Answer):
    """Budgets, and what was told of them, newest first."""

    budgets: list[BudgetState]
    alerts: list[BudgetAlert]
