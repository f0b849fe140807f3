"""Decisions about costs: what a trace, a report or a bill says about an attempt. No I/O, exact decimals.

What counts, in this order:
  1. a trace's own totals. Its cost is the tracing client's word; without one the price table holds, by the models
     that the agent reported. Totals count every model call once, whatever parents repeat of their children.
  2. what the agent reported in its callback, when the trace says nothing and nothing more is to be expected.
  3. nothing: the attempt is pending, and unknown in the end. Unknown is never zero. Zero is only what somebody
     vouches for: an agent that says it called no model, or a run that never was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from services.cost_attributor.messages import (
    Attribution,
    Bill,
    EndedAttempt,
    Finding,
    Line,
    Part,
    RunBill,
    RunShare,
    UsageRecord,
)

NO_MODEL = "no_model_called"
NO_RUN = "no_run"
NO_MACHINE = "no_machine"
CALLBACK = "callback"
STORED = frozenset({"stored", "unverified"})
"""What an agent says of its trace when there should be one."""
_COUNTERS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_EXACT = Decimal("0.000000000001")


class Traced(Protocol):
    """What the decisions need to know of a trace."""

    @property
    def trace_id(self) -> str: ...  # noqa: D102
    @property
    def is_ended(self) -> bool: ...  # noqa: D102
    @property
    def has_usage(self) -> bool: ...  # noqa: D102
    @property
    def input_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def output_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def cache_read_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def cache_write_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def cost(self) -> Decimal | None: ...  # noqa: D102


def attribute(attempt: EndedAttempt, traces: Sequence[Traced], *, unknown_after: float) -> Attribution:
    """What is known about the attempt's usage now, given every trace that was found for it."""
    reported = reported_parts(attempt.usage)
    telling = [trace for trace in traces if trace.has_usage]
    is_overdue = attempt.ended_seconds >= unknown_after
    if telling:
        return _by_traces(attempt, traces, telling, reported, is_overdue=is_overdue)
    if attempt.never_ran:
        # Nothing ran: neither a model nor a machine.
        return Attribution(attempt, Finding.FINAL, [_zero(attempt, NO_RUN), _zero(attempt, NO_MACHINE, "compute")])
    if attempt.usage == []:
        return Attribution(attempt, Finding.FINAL, [_zero(attempt, NO_MODEL)])
    # A trace that was read back complete by its agent will not learn of usage later.
    nothing_to_come = attempt.trace_state == "stored" and any(trace.is_ended for trace in traces)
    if not (is_overdue or nothing_to_come):
        return Attribution(attempt, Finding.PENDING, [])
    if not reported:
        # Also where nothing is to come: the answer is the same, and a late span may still surprise us.
        return Attribution(attempt, Finding.UNKNOWN if is_overdue else Finding.PENDING, [])
    # An agent that stored a trace which nobody finds knows of more than we do: worth another look when it is asked for.
    is_awaited = attempt.trace_state in STORED and not traces
    is_whole = len(reported) == len(attempt.usage or []) and not is_awaited
    finding = Finding.FINAL if is_whole else Finding.PARTIAL
    return Attribution(attempt, finding, [_line(attempt, "callback", CALLBACK, reported, is_whole=is_whole)])


def _by_traces(
    attempt: EndedAttempt,
    traces: Sequence[Traced],
    telling: Sequence[Traced],
    reported: list[Part],
    *,
    is_overdue: bool,
) -> Attribution:
    finished = all(trace.is_ended for trace in traces)
    seen = sum(getattr(trace, name) or 0 for trace in telling for name in _COUNTERS)
    counted = sum(getattr(part, name) for part in reported for name in _COUNTERS)
    # Less than the agent counted itself: a trace is still on its way.
    is_whole = finished and seen >= counted
    if not is_whole and not is_overdue:
        return Attribution(attempt, Finding.PENDING, [])
    lines = [
        _line(attempt, "trace", trace.trace_id, _parts_of(trace, reported), trace.cost, is_whole=is_whole)
        for trace in telling
    ]
    return Attribution(attempt, Finding.FINAL if is_whole else Finding.PARTIAL, lines, disagrees=counted > seen)


def reported_parts(usage: Sequence[Mapping[str, Any]] | None) -> list[Part]:
    """The agent's own count by model. A model that was called but never counted says nothing, and not zero."""
    parts = []
    for each in usage or ():
        counters = [int(each.get(name) or 0) for name in _COUNTERS]
        if any(counters) or not each.get("calls"):
            parts.append(Part(str(each.get("model")), *counters))
    return parts


def _parts_of(trace: Traced, reported: list[Part]) -> list[Part]:
    """A trace's totals by model: its one model's, or as the agent split them when that adds up to the same."""
    totals = [getattr(trace, name) or 0 for name in _COUNTERS]
    if len(reported) == 1:
        return [Part(reported[0].model, *totals)]
    if reported and [sum(getattr(part, name) for part in reported) for name in _COUNTERS] == totals:
        return reported
    return [Part(None, *totals)]


def _line(
    attempt: EndedAttempt, source: str, record_id: str, parts: list[Part], amount: Decimal | None = None,
    *, kind: str = "llm", is_whole: bool = True,
) -> Line:  # fmt: skip
    models = sorted({part.model for part in parts if part.model is not None})
    sent, output, read, written = (sum(getattr(part, name) for part in parts) for name in _COUNTERS)
    return Line(
        source, record_id, attempt.attempt_id, attempt.task_id, kind, ", ".join(models)[:200] or None, sent, output,
        read, written, amount, attempt.used_at, parts, is_whole,
    )  # fmt: skip


def _zero(attempt: EndedAttempt, why: str, kind: str = "llm") -> Line:
    return _line(attempt, "callback", why, [], Decimal(0), kind=kind)


def split_bill(records: Iterable[UsageRecord], shares: Sequence[RunShare]) -> list[Bill]:
    """Each usage record over the attempts that its run carried, by the time that each of them took.

    The parts add up to the whole exactly: the last one takes what rounding left. A run whose times are all
    zero is split evenly. A record of a run that is not ours gives nothing.
    """
    of_run: dict[int, list[RunShare]] = defaultdict(list)
    for share in sorted(shares, key=lambda each: each.attempt_id):
        of_run[share.run_id].append(share)
    return [bill for record in records for bill in _split(record, of_run.get(record.run_id, []))]


def _split(record: UsageRecord, shares: Sequence[RunShare]) -> list[Bill]:
    weights = [max(Decimal(0), share.seconds) for share in shares]
    if not sum(weights):
        weights = [Decimal(1)] * len(shares)
    whole = sum(weights, Decimal(0))
    bills: list[Bill] = []
    left = record.quantity
    amount_left = None if record.unit_price is None else (record.quantity * record.unit_price).normalize()
    for number, (share, weight) in enumerate(zip(shares, weights, strict=True), 1):
        is_last = number == len(shares)
        quantity = left if is_last else (record.quantity * weight / whole).quantize(_EXACT)
        amount = None
        if amount_left is not None and record.unit_price is not None:
            amount = amount_left if is_last else (quantity * record.unit_price).quantize(_EXACT)
            amount_left -= amount
        left -= quantity
        bills.append(Bill(record, share.attempt_id, share.task_id, quantity, amount))
    return bills


def in_groups(bills: Sequence[Bill], size: int) -> Iterator[list[Bill]]:
    """Bills in order of their runs, in groups of about `size` that never part a run."""
    group: list[Bill] = []
    for bill in bills:
        if len(group) >= size and bill.record.run_id != group[-1].record.run_id:
            yield group
            group = []
        group.append(bill)
    if group:
        yield group


def run_bills(records: Iterable[UsageRecord], shares: Sequence[RunShare]) -> list[RunBill]:
    """How many records were found of each of these runs, in the order of their ids."""
    found = Counter(record.run_id for record in records)
    carried: dict[int, list[RunShare]] = defaultdict(list)
    for share in shares:
        carried[share.run_id].append(share)
    return [
        RunBill(run_id, found[run_id], min(each.submitted_at for each in carried[run_id]), _end(carried[run_id]))
        for run_id in sorted(carried)
    ]


def _end(shares: Sequence[RunShare]) -> datetime | None:
    ends = [share.finished_at for share in shares if share.finished_at is not None]
    return max(ends) if len(ends) == len(shares) else None


def differences(changed: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By how much the sums change where lines got another amount, by currency."""
    found: dict[str, Decimal] = defaultdict(Decimal)
    for line in changed:
        found[line["old_currency"]] -= line["old_amount"] or Decimal(0)
        found[line["currency"]] += line["amount"]
    return {currency: format(change, "f") for currency, change in found.items() if change}


def as_row(line: Line) -> dict[str, Any]:
    """The line as the statement takes it."""
    row = {each.name: getattr(line, each.name) for each in fields(line)}
    row["amount"] = None if line.amount is None else str(line.amount)
    row["parts"] = [{each.name: getattr(part, each.name) for each in fields(part)} for part in line.parts]
    return row
