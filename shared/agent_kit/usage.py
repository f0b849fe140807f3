"""Tokens of one attempt, per model, as the provider counted them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from shared.contract.callback import Usage


@dataclass(frozen=True, slots=True)
class CallUsage:
    """The counters of one call, disjoint: `input_tokens` leaves out what was read from or written to a cache."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: Decimal | None = None

    @property
    def prompt_tokens(self) -> int:
        """Everything that was sent, cached or not."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


def read_usage(raw: dict[str, Any] | None) -> CallUsage | None:
    """The usage of an OpenAI-protocol answer; None when it is absent or not numbers: unknown is not zero."""
    if not raw:
        return None
    prompt, output = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    if prompt is None or output is None:
        return None
    details = raw.get("prompt_tokens_details") or {}
    read = _first(details.get("cached_tokens"), raw.get("cache_read_input_tokens"))
    written = _first(details.get("cache_creation_tokens"), raw.get("cache_creation_input_tokens"))
    return CallUsage(max(0, prompt - read - written), output, read, written, _money(raw.get("cost")))


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return int(value)


def _first(*values: Any) -> int:
    return next((count for count in map(_count, values) if count is not None), 0)


def _money(value: Any) -> Decimal | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount >= 0 else None


class UsageLedger:
    """Adds up the calls of one attempt by model."""

    def __init__(self) -> None:
        self._calls: dict[str, list[CallUsage | None]] = defaultdict(list)

    def add(self, model: str, usage: CallUsage | None) -> None:
        """Count one call; None when the provider did not say."""
        self._calls[model].append(usage)

    def report(self) -> list[Usage]:
        """One row per model for the callback. A model none of whose calls was counted has calls but no tokens."""
        return [self._row(model, calls) for model, calls in self._calls.items()]

    @staticmethod
    def _row(model: str, calls: list[CallUsage | None]) -> Usage:
        known = [call for call in calls if call is not None]
        costs = [call.cost for call in known if call.cost is not None]
        return Usage(
            model=model[:200],
            input_tokens=sum(call.input_tokens for call in known),
            output_tokens=sum(call.output_tokens for call in known),
            cache_read_tokens=sum(call.cache_read_tokens for call in known),
            cache_write_tokens=sum(call.cache_write_tokens for call in known),
            calls=len(calls),
            cost=sum(costs, Decimal(0)) if costs and len(costs) == len(calls) else None,
        )
