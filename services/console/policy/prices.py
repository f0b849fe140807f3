"""Where a new price goes among those that are there: which one it replaces, ends, and is ended by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.console.messages.prices import Price

COMPARED = ("input_price", "output_price", "cache_read_price", "cache_write_price", "note")


@dataclass(frozen=True, slots=True)
class Place:
    """What has to happen around a new price. `is_new` is False when the very same price stands there already."""

    is_new: bool
    retired: Mapping[str, Any] | None
    ended: int | None
    valid_to: datetime | None


def place_of(price: Price, standing: Sequence[Mapping[str, Any]]) -> Place:
    """The place of a price among those of its model. Intervals never overlap: each ends where the next begins."""
    rows = [row for row in standing if row["currency"] == price.currency]
    same = next((row for row in rows if row["valid_from"] == price.valid_from), None)
    if same is not None and all(same[name] == getattr(price, name) for name in COMPARED):
        return Place(is_new=False, retired=None, ended=None, valid_to=None)
    before = [row for row in rows if row["valid_from"] < price.valid_from]
    after = [row["valid_from"] for row in rows if row["valid_from"] > price.valid_from]
    last = max(before, key=lambda row: row["valid_from"], default=None)
    overlaps = last is not None and (last["valid_to"] is None or last["valid_to"] > price.valid_from)
    return Place(
        is_new=True, retired=same, ended=last["id"] if last is not None and overlaps else None,
        valid_to=min(after, default=None),
    )  # fmt: skip
