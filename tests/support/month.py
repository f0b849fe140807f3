"""A month of facts, generated: tasks, attempts, traces and rows of the bill, each with the time at which it can be
seen; and what they cost, worked out with fractions from the facts alone.

Nothing here knows the schema, the statements or the policy of the attributor: two calculations that share no code.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any
from uuid import UUID

# The platform's list price changes in the middle of this month, at the first instant of 2025.
START, END = datetime(2024, 12, 15, tzinfo=UTC), datetime(2025, 1, 15, tzinfo=UTC)
SKU, UNKNOWN_SKU = "PREMIUM_JOBS_SERVERLESS_COMPUTE_US_EAST_N_VIRGINIA", "NOBODY_KNOWS_IT"
OURS, THEIRS = "4711000000000001", "4711000000000002"
AGENTS, CUSTOMERS = ("parser", "extractor", "judge"), ("acme", "globex", "initech", None)
PRICE_CHANGE = datetime(2025, 1, 3, 7, 30, tzinfo=UTC)
# Model, currency, prices of a million tokens (input, output, read, written) before and after the change.
MODELS = {
    "plain": ("USD", ("0.15", "0.60", "0.075", "0.15"), ("0.15", "0.60", "0.075", "0.15")),
    "moving": ("USD", ("3", "15", "0.3", "3.75"), ("2.5", "12.5", "0.25", "3.125")),
    "abroad": ("EUR", ("1", "4", "0.1", "1.25"), ("1", "4", "0.1", "1.25")),
}
Tokens = tuple[int, int, int, int]


@dataclass
class TraceFact:
    """One trace: disjoint tokens, the cost that it names or None, and when it can be found."""

    trace_id: str
    tokens: Tokens
    cost: str | None
    seen_at: datetime


@dataclass
class AttemptFact:
    """One attempt that ended."""

    id: UUID
    task_id: UUID
    number: int
    agent: str
    customer: str | None
    outcome: str
    leased_at: datetime
    started_at: datetime
    finished_at: datetime
    run_id: int | None = None
    usage: list[dict[str, Any]] | None = None
    models: list[tuple[str, Tokens]] = field(default_factory=list)
    traces: list[TraceFact] = field(default_factory=list)

    @property
    def microseconds(self) -> int:
        return (self.finished_at - self.started_at) // timedelta(microseconds=1)


@dataclass
class BillFact:
    """One row of the account's bill, ours or not."""

    record_id: str
    workspace: str
    run_id: int
    sku: str
    product: str
    record_type: str
    quantity: str
    start: datetime
    end: datetime
    seen_at: datetime


class Month:
    """The facts of a month, the same for the same seed."""

    def __init__(self, tasks: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.attempts: list[AttemptFact] = []
        self.bills: list[BillFact] = []
        self.statuses: dict[UUID, str] = {}
        self._next_run = 1_000_000
        for _ in range(tasks):
            self._task()
        self._pack()
        for run_id, carried in self.runs().items():
            self._bill(run_id, carried)

    def runs(self) -> dict[int, list[AttemptFact]]:
        """Attempts by the run that carried them."""
        found: dict[int, list[AttemptFact]] = defaultdict(list)
        for attempt in self.attempts:
            if attempt.run_id is not None:
                found[attempt.run_id].append(attempt)
        return found

    def _uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def _task(self) -> None:
        task_id, agent = self._uuid(), self._random.choice(AGENTS)
        customer = self._random.choice(CUSTOMERS)
        at = START + timedelta(microseconds=self._random.randrange((END - START) // timedelta(microseconds=1)))
        ending = self._random.choices(["completed", "failed", "cancelled"], [90, 8, 2])[0]
        retries = self._random.choices([0, 1, 2], [80, 15, 5])[0]
        for number in range(1, retries + 2):
            is_last = number == retries + 1
            outcome = ending if is_last else self._random.choice(["failed", "lost", "superseded"])
            started = at + timedelta(seconds=self._random.random() * 30)
            finished = started + timedelta(microseconds=self._random.randrange(5_000_000, 3_600_000_000))
            attempt = AttemptFact(self._uuid(), task_id, number, agent, customer, outcome, at, started, finished)
            self._usage(attempt)
            self.attempts.append(attempt)
            at = finished + timedelta(seconds=2)
        self.statuses[task_id] = ending

    def _usage(self, attempt: AttemptFact) -> None:
        kind = self._random.choices(
            ["named", "table", "both_models", "two_traces", "callback", "silent", "no_model", "no_run"],
            [58, 15, 5, 6, 6, 4, 4, 2],
        )[0]
        if kind == "no_run":
            attempt.outcome = "failed"
            return
        self._next_run += 1
        attempt.run_id = self._next_run
        if kind == "no_model":
            attempt.usage = []
        if kind in {"silent", "no_model"}:
            return
        names = ["plain", "moving"] if kind in {"both_models", "callback"} else [self._random.choice(list(MODELS))]
        attempt.models = [(name, self._tokens()) for name in names]
        if kind != "named" or self._random.random() < 0.5:
            attempt.usage = [_reported(name, tokens) for name, tokens in attempt.models]
        if kind == "callback":
            return
        whole = tuple(sum(column) for column in zip(*(tokens for _, tokens in attempt.models), strict=True))
        parts = [whole]
        if kind == "two_traces":
            first = tuple(each // 3 for each in whole)
            parts = [first, tuple(a - b for a, b in zip(whole, first, strict=True))]
        for part in parts:
            cost = None if kind in {"table", "both_models"} else f"{self._random.randrange(10**7)}e-8"
            late = self._random.choice([1, 5, 300, 6 * 3600, 3 * 86_400])
            attempt.traces.append(
                TraceFact(f"tr-{self._uuid().hex}", part, cost, attempt.finished_at + timedelta(seconds=late))  # type: ignore[arg-type]
            )

    def _tokens(self) -> Tokens:
        most = (200_000, 8_000, 50_000, 9_000)
        sent, output, read, written = (self._random.randrange(each) for each in most)
        return sent, output, read, written

    def _pack(self) -> None:
        """Let a part of the runs carry several attempts: neighbours in time, of one agent."""
        for agent in AGENTS:
            mine = sorted((a for a in self.attempts if a.agent == agent and a.run_id), key=lambda a: a.leased_at)
            at = 0
            while at < len(mine):
                size = self._random.choices([1, 2, 5], [70, 20, 10])[0]
                for each in mine[at : at + size]:
                    each.run_id = mine[at].run_id
                at += size

    def _bill(self, run_id: int, carried: list[AttemptFact]) -> None:
        begin, end = min(a.started_at for a in carried), max(a.finished_at for a in carried)
        sku = UNKNOWN_SKU if self._random.random() < 0.005 else SKU
        start = begin
        while start < end:
            until = min(end, _next_half_hour(start))
            hours = (until - start) / timedelta(hours=1)
            seen = until + timedelta(hours=1 + 11 * self._random.random())
            quantity = f"{hours * 2:.9f}"
            self._row(OURS, run_id, sku, "JOBS", "ORIGINAL", quantity, (start, until), seen)
            if self._random.random() < 0.08:
                corrected = seen + timedelta(days=1 + 2 * self._random.random())
                self._row(OURS, run_id, sku, "JOBS", "RETRACTION", f"-{quantity}", (start, until), corrected)
                self._row(OURS, run_id, sku, "JOBS", "RESTATEMENT", f"{hours * 1.7:.9f}", (start, until), corrected)
            if self._random.random() < 0.1:
                self._row(THEIRS, run_id, SKU, "JOBS", "ORIGINAL", "77", (start, until), seen)
                self._row(OURS, run_id, SKU, "SQL", "ORIGINAL", "88", (start, until), seen)
                self._row(OURS, 900_000_000 + run_id, SKU, "JOBS", "ORIGINAL", "99", (start, until), seen)
            start = until

    def _row(
        self, workspace: str, run_id: int, sku: str, product: str, kind: str, quantity: str,
        span: tuple[datetime, datetime], seen: datetime,
    ) -> None:  # fmt: skip
        self.bills.append(BillFact(str(self._uuid()), workspace, run_id, sku, product, kind, quantity, *span, seen))


def _reported(model: str, tokens: Tokens) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return {"model": model, "calls": 1, **dict(zip(names, tokens, strict=True))}


def _next_half_hour(at: datetime) -> datetime:
    hour = at.replace(minute=0, second=0, microsecond=0)
    return hour + timedelta(minutes=30 if at.minute < 30 else 60)


class Truth:
    """What a month cost, attempt by attempt, in exact fractions. None is unknown."""

    def __init__(self, month: Month) -> None:
        self.llm: dict[UUID, dict[str, Fraction] | None] = {a.id: _llm(a) for a in month.attempts}
        self.compute: dict[UUID, Fraction | None] = {a.id: None if a.run_id else Fraction(0) for a in month.attempts}
        self.of_run: dict[int, Fraction] = {}
        runs = month.runs()
        for row in month.bills:
            if row.workspace != OURS or row.product != "JOBS" or row.sku != SKU or row.run_id not in runs:
                continue
            price = Fraction("0.39") if row.start < datetime(2025, 1, 1, tzinfo=UTC) else Fraction("0.35")
            money = Fraction(row.quantity) * price
            self.of_run[row.run_id] = self.of_run.get(row.run_id, Fraction(0)) + money
        for run_id, money in self.of_run.items():
            whole = sum(a.microseconds for a in runs[run_id])
            for attempt in runs[run_id]:
                self.compute[attempt.id] = money * Fraction(attempt.microseconds, whole)


def _llm(attempt: AttemptFact) -> dict[str, Fraction] | None:
    if attempt.run_id is None or attempt.usage == []:
        return {"USD": Fraction(0)}
    if not attempt.models:
        return None
    if attempt.traces and attempt.traces[0].cost is not None:
        return {"USD": sum((Fraction(trace.cost or 0) for trace in attempt.traces), Fraction(0))}
    found: dict[str, Fraction] = defaultdict(Fraction)
    for model, tokens in attempt.models:
        currency, before, after = MODELS[model]
        prices = before if attempt.started_at < PRICE_CHANGE else after
        found[currency] += sum(Fraction(p) * n for p, n in zip(prices, tokens, strict=True)) / 1_000_000
    return dict(found)
