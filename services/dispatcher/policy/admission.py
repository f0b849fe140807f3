"""Who may start now, for agents with options: bounded backfill, budgets, fair share between customers.

One claim decides for one agent at a time, over lines of waiting tasks in the order of the queue: one line for all,
or one for each customer. The agent's row is locked, so nobody else decides for it meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that may start. `tokens` is what it would weigh per minute."""

    task_id: UUID
    customer: str | None
    priority: int
    created_at: datetime
    tokens: int
    overtaken: int = 0

    @property
    def place(self) -> tuple[int, datetime, UUID]:
        """Its place in the plain order."""
        return -self.priority, self.created_at, self.task_id


@dataclass(frozen=True, slots=True)
class Line:
    """The next tasks, in order. `is_cut`: there are more behind them."""

    candidates: Sequence[Candidate]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """What the agent's limits and its budget leave; None is no limit of that kind. `cost` is that of one task."""

    slots: int | None = None
    tokens_left: int | None = None
    max_tpm: int | None = None
    is_idle: bool = True
    cost_left: Decimal | None = None
    cost: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Share:
    """A customer's tags: the virtual times at which its last task was started and is finished."""

    started: float
    finished: float


@dataclass(frozen=True, slots=True)
class Rules:
    """The agent's options: how often a task may be overtaken, and the customers' weights; None is the plain order."""

    overtakes: int = 0
    weights: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Pick:
    """A task to lease. `overtakes`: another one waits for room before it."""

    candidate: Candidate
    is_oversized: bool = False
    overtakes: bool = False


@dataclass(slots=True)
class Admission:
    """What one decision gives: picks in order, tasks that were overtaken and how often, customers' new tags."""

    picks: list[Pick] = field(default_factory=list)
    overtaken: Counter[UUID] = field(default_factory=Counter)
    shares: dict[str, Share] = field(default_factory=dict)


def projected_tokens(estimate: int, expected_seconds: int) -> int:
    """The rate of a task: its estimate over the minutes it is expected to take, never less than one minute's worth."""
    return -(-estimate * 60 // max(expected_seconds, 60))


def admit(
    lines: Sequence[Line],
    room: Room,
    rules: Rules,
    *,
    most: int,
    purses: Mapping[str, Decimal] | None = None,
    shares: Mapping[str, Share] | None = None,
) -> Admission:
    """Pick at most `most` tasks, in order, so that no limit and no budget is exceeded.

    `purses` is what customers' budgets leave; a customer that is not in it has none. A customer whose purse is empty
    costs the others nothing. The first task without room ends the turn, unless the agent allows to overtake it.
    """
    return _Turn(lines, room, rules, dict(purses or {}), dict(shares or {})).take(most)


class _Turn:
    """One decision while it is made."""

    def __init__(
        self, lines: Sequence[Line], room: Room, rules: Rules, purses: dict[str, Decimal], shares: dict[str, Share]
    ) -> None:
        self._cut = False
        self._lines = [(line, iter(line.candidates)) for line in lines]
        self._heads = [self._next(number) for number in range(len(lines))]
        self._room = room
        self._rules = rules
        self._purses = purses
        self._shares = shares
        self._now = max((share.started for share in shares.values()), default=0.0)
        self._blocked: list[Candidate] = []
        self._found = Admission()

    def take(self, most: int) -> Admission:
        while len(self._found.picks) < most and not self._cut:
            number = self._whose_turn()
            if number is None or not self._consider(number):
                break
        return self._found

    def _next(self, number: int) -> Candidate | None:
        line, rest = self._lines[number]
        candidate = next(rest, None)
        # What stands behind a cut might be next: the turn ends here, and the next one looks further.
        self._cut = self._cut or (candidate is None and line.is_cut)
        return candidate

    def _whose_turn(self) -> int | None:
        """The line whose head is next: highest priority, then whose share is due, then who came first."""
        turns = [
            ((-head.priority, self._start(head), *head.place), number)
            for number, head in enumerate(self._heads)
            if head is not None
        ]
        return min(turns)[1] if turns else None

    def _start(self, candidate: Candidate) -> float:
        if self._rules.weights is None:
            return 0.0
        share = self._shares.get(candidate.customer or "")
        return max(self._now, share.finished) if share else self._now

    def _consider(self, number: int) -> bool:
        """Pick this line's head, or leave it; False when the turn is over."""
        candidate, room = self._heads[number], self._room
        if candidate is None:
            raise AssertionError("a line without a head has no turn")
        if self._is_empty(self._purses.get(candidate.customer or "")):
            self._heads[number] = None
            return True
        if room.slots == 0 or self._is_empty(room.cost_left):
            return False
        if room.tokens_left is not None and candidate.tokens > room.tokens_left:
            if self._runs_alone(candidate):
                self._pick(candidate, is_oversized=True)
                return False
            self._blocked.append(candidate)
        elif self._is_patience_over():
            return False
        else:
            self._pick(candidate)
        self._heads[number] = self._next(number)
        return not self._is_patience_over()

    def _is_empty(self, left: Decimal | None) -> bool:
        return left is not None and left < self._room.cost

    def _runs_alone(self, candidate: Candidate) -> bool:
        """A task beyond the whole budget runs when nothing else does."""
        return self._room.is_idle and not self._found.picks and not self._blocked and (
            0 < (self._room.max_tpm or 0) < candidate.tokens
        )  # fmt: skip

    def _is_patience_over(self) -> bool:
        """Somebody who waits for room may not be overtaken once more."""
        return any(
            each.overtaken + self._found.overtaken[each.task_id] >= self._rules.overtakes for each in self._blocked
        )

    def _pick(self, candidate: Candidate, *, is_oversized: bool = False) -> None:
        self._found.picks.append(Pick(candidate, is_oversized, overtakes=bool(self._blocked)))
        self._found.overtaken.update(each.task_id for each in self._blocked)
        room = self._room
        self._room = replace(
            room,
            slots=None if room.slots is None else room.slots - 1,
            tokens_left=None if room.tokens_left is None else max(0, room.tokens_left - candidate.tokens),
            cost_left=None if room.cost_left is None else room.cost_left - room.cost,
        )
        name = candidate.customer or ""
        if name in self._purses:
            self._purses[name] -= room.cost
        if self._rules.weights is not None:
            started = self._start(candidate)
            weight = self._rules.weights.get(name, 1.0)
            self._now = max(self._now, started)
            self._shares[name] = Share(started, started + max(1, candidate.tokens) / weight)
            self._found.shares[name] = self._shares[name]


def lines_of(candidates: Sequence[Candidate], depth: int | None) -> list[Line]:
    """One line for each customer, cut where `depth` tasks of it were listed; one for all when `depth` is None."""
    if depth is None:
        return [Line(candidates)]
    of_customer: dict[str, list[Candidate]] = {}
    for each in candidates:
        of_customer.setdefault(each.customer or "", []).append(each)
    return [Line(line, is_cut=len(line) >= depth) for line in of_customer.values()]
