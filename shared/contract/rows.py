"""Frozen row types that services hand around; a test holds each equal to the statement that fills it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class LeasedAttempt(NamedTuple):
    """An attempt that this process holds and must hand to the runner; the claim's columns come first, in its order."""

    task_id: UUID
    attempt_id: UUID
    attempt: int
    agent: str
    target: str
    waited_seconds: float
    # How many attempts of this agent one run may carry, and the run that it is to share already.
    tasks_per_run: int = 1
    pack_id: UUID | None = None
    # Its agent has a circuit breaker: its end must be looked at. And whether samples are wanted to learn from.
    has_breaker: bool = False
    learn_estimates: bool = False


@dataclass(frozen=True, slots=True)
class UnwantedRun:
    """A run that must end; without a run id nobody ever learned of one."""

    attempt_id: UUID
    task_id: UUID
    run_id: int | None


@dataclass(frozen=True, slots=True)
class OverdueAttempt:
    """An attempt whose lease ended although its run is known."""

    task_id: UUID
    attempt_id: UUID
    attempt: int
    agent: str
    run_id: int
    has_result: bool
    ran_seconds: float
    # It shares its run with others, and its turn had not come when it was last heard of.
    not_begun: bool
    lease_seconds: int
    max_run_seconds: int
    lease_expires_at: datetime
