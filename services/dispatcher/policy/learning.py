"""What ended attempts teach about their agent: whether it works, and what its tasks take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from shared.contract.rows import LeasedAttempt

MEMORY = 200
"""An average forgets: so many earlier samples weigh against new ones, at most."""
SAMPLES_PER_AGENT = 5
SAMPLING_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `works` is None when that says nothing about its agent: it was cancelled or overtaken."""

    task_id: UUID
    works: bool | None


@dataclass(frozen=True, slots=True)
class Circuit:
    """The different tasks that failed in a row; `open_until` is set while the agent has to prove itself."""

    failed_tasks: tuple[UUID, ...] = ()
    opened_at: datetime | None = None
    open_until: datetime | None = None


def next_circuit(circuit: Circuit, outcomes: Iterable[Outcome], now: datetime, failures: int, seconds: int) -> Circuit:
    """The circuit after these outcomes, in their order.

    `failures` different tasks in a row open it for `seconds`; then one task at a time is tried, and whatever ends
    first decides: a success closes it, a failure opens it again. One task that fails often opens nothing.
    """
    for outcome in outcomes:
        if outcome.works:
            circuit = Circuit()
        elif outcome.works is False:
            tasks = (*(each for each in circuit.failed_tasks if each != outcome.task_id), outcome.task_id)[-failures:]
            circuit = replace(circuit, failed_tasks=tasks)
            is_closed = circuit.open_until is None
            is_tried = circuit.open_until is not None and circuit.open_until <= now
            if is_tried or (is_closed and len(tasks) >= failures):
                circuit = replace(circuit, opened_at=now, open_until=now + timedelta(seconds=seconds))
    return circuit


@dataclass(frozen=True, slots=True)
class Average:
    """A mean and how many samples it was made of."""

    mean: float = 0.0
    samples: int = 0

    def with_samples(self, values: Sequence[float]) -> Average:
        """The mean with these values, in which the older ones weigh no more than MEMORY samples."""
        if not values:
            return self
        weight = min(self.samples, MEMORY)
        return Average((self.mean * weight + sum(values)) / (weight + len(values)), self.samples + len(values))


class Sampling:
    """Which attempts to look at when they end: all of agents with a breaker, now and then one of the others."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[float, int]] = {}

    def choose(self, leased: Iterable[LeasedAttempt], now: float) -> list[UUID]:
        """The attempts to watch; `now` is in seconds of any steady clock."""
        return [
            each.attempt_id for each in leased if each.has_breaker or (each.learn_estimates and self._is_due(each, now))
        ]

    def _is_due(self, leased: LeasedAttempt, now: float) -> bool:
        since, taken = self._taken.get(leased.agent, (now, 0))
        if now - since >= SAMPLING_SECONDS:
            since, taken = now, 0
        self._taken[leased.agent] = (since, taken + 1)
        return taken < SAMPLES_PER_AGENT
