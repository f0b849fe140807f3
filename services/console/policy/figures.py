"""Which lines of the ledger make a figure of the cost page: the same words in the link and in the answer."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from shared.contract.errors import RejectedError

GroupBy = Literal["task", "agent", "customer", "status", "day", "month", "model", "outcome"]
FigureName = Literal["total_cost", "llm_cost", "compute_cost", "retry_cost", "superseded_cost", "tokens"]

BY_LINE = frozenset({"model", "outcome"})
"""Groupings of lines; the others are of tasks."""

_KINDS = {"llm_cost": ["llm"], "tokens": ["llm"], "compute_cost": ["compute"]}
_NOT_OF = {"retry_cost": ["completed"]}
_OUTCOMES = ("completed", "failed", "cancelled", "superseded", "lost", "leased", "submitted", "running", "released")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its name, and the row of a grouping in which it stands; without a grouping, of all.

    A key of None is the row of those that have none, for example tasks without a customer.
    """

    name: FigureName = "total_cost"
    group_by: GroupBy | None = None
    key: str | None = None
    zone: str = "UTC"
    currency: str | None = None

    def arguments(self) -> tuple[Any, ...]:
        """The parameters after the filter: grouping, zone, key; kinds of lines, outcomes left out, currency."""
        without = [each for each in _OUTCOMES if each != "superseded"] if self.name == "superseded_cost" else None
        kinds = _KINDS.get(self.name, ["llm", "compute"])
        return self.group_by, self.zone, self.key, kinds, without or _NOT_OF.get(self.name), self.currency


def zone_named(name: str) -> str:
    """The name of a time zone that exists. Raises RejectedError for any other."""
    try:
        return ZoneInfo(name).key
    except (ValueError, OSError, LookupError):
        raise RejectedError(f"tz: {name!r} is no time zone like Europe/Berlin", reason="bad_filter") from None


def encode_line(attempt_id: UUID, source: str, record_id: str) -> str:
    """The cursor after this line."""
    return base64.urlsafe_b64encode(f"{attempt_id} {source} {record_id}".encode()).decode().rstrip("=")


def decode_line(cursor: str | None) -> tuple[UUID | None, str, str]:
    """The line that a cursor stands after. Raises RejectedError for one that we did not make."""
    if not cursor:
        return None, "", ""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        attempt_id, source, record_id = text.split(" ", 2)
        return UUID(attempt_id), source, record_id
    except (ValueError, binascii.Error):
        raise RejectedError("cursor: is not one of ours; begin without it", reason="bad_cursor") from None
