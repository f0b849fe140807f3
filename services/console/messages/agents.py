"""Bodies about agents and customers: settings, their use, what budgets have left."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from services.console.messages.answers import Answer


class AgentState(Answer):
    """How far an agent's limits are used now."""

    running: int
    reserved_tpm: int
    used_tpm: int
    slots: int | None
    tokens_left: int | None
    waiting: int
    deferred: int
    oldest_waiting_seconds: float | None


class Circuit(Answer):
    """An agent's circuit breaker: `closed`, `open` until an instant, then `half_open` with one task at a time."""

    state: str
    open_until: datetime | None
    failed_in_a_row: int


class Budget(Answer):
    """What a budget has left: decimal strings, US dollars."""

    spent_today: str
    spent_this_month: str
    reserved_this_month: str
    cost_left: str
    renewed_at: datetime


class Estimates(Answer):
    """What the agent's tasks really took, on the average; they count once there are 20 samples."""

    samples: int
    tokens: float
    seconds: float
    tokens_per_page: float | None
    cost: str | None


class Agent(Answer):
    """An agent: its settings, and their present use under `state`."""

    name: str
    target: str
    description: str
    max_concurrent_tasks: int | None
    max_tpm: int | None
    lease_seconds: int
    max_attempts: int
    expected_seconds: int
    max_run_seconds: int
    default_tokens: int
    tokens_per_page: int
    backfill: bool
    backfill_limit: int
    fair_share: bool
    customer_weights: dict[str, float]
    daily_budget: str | None
    monthly_budget: str | None
    expected_cost: str
    circuit_failures: int | None
    circuit_seconds: int
    learn_estimates: bool
    tasks_per_run: int
    paused: bool
    options: dict[str, Any]
    version: int
    cooldown_until: datetime | None
    created_at: datetime
    updated_at: datetime
    updated_by: str
    state: AgentState
    circuit: Circuit
    budget: Budget | None
    estimates: Estimates | None


class AgentList(Answer):
    """All agents by name."""

    agents: list[Agent]


class Customer(Answer):
    """A customer with budgets over all agents, and what they have left."""

    name: str
    daily_budget: str | None
    monthly_budget: str | None
    version: int
    updated_at: datetime
    updated_by: str
    budget: Budget | None


class CustomerList(Answer):
    """The customers that have, or had, a budget, by name."""

    customers: list[Customer]


class AgentChange(Answer):
    """What an agent's settings were from one version on."""

    version: int
    changed_at: datetime
    changed_by: str
    settings: dict[str, Any]


class AgentHistory(Answer):
    """The changes of an agent, newest first."""

    changes: list[AgentChange]
