"""Which tasks are meant: the filters of lists, totals, exports, bulk actions and the event stream, read once.

All of them take the same words (`status`, `agent`, `customer`, `from`, `to`, `tz`, `text`, `label`), so a link
means the same tasks everywhere. Ranges are half-open, `from` ≤ created < `to`, between instants that name
their zone, or are days and times of the zone that `tz` names: a day is whatever the asker's zone makes of it,
and days that touch never share a task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from shared.contract.errors import RejectedError
from shared.contract.lifecycle import TaskStatus
from shared.contract.text import clean_text

PARAMETERS = ("status", "agent", "customer", "from", "to", "tz", "text", "label")

_STATUSES = frozenset(status.value for status in TaskStatus)
_ZONE_BEHIND_SPACE = re.compile(r" (\d{2}:?\d{2})$")
_LONGEST = 200
_ID_LENGTH = 36
_MOST_VALUES = 50
_FIRST_YEAR, _LAST_YEAR = 1900, 9000


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """A set of tasks; empty fields mean any. Hashable, so that equal filters share their answers."""

    statuses: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    customers: tuple[str, ...] = ()
    from_at: datetime | None = None
    to_at: datetime | None = None
    text: str | None = None
    labels: tuple[tuple[str, str | None], ...] = ()

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]]) -> TaskFilter:
        """The filter that these query parameters mean; others and empty ones are left aside.

        `status` and `agent` may be repeated or hold commas, `customer` and `label` (`name` or `name=value`)
        may be repeated. Raises RejectedError that names the parameter.
        """
        given: dict[str, list[str]] = {name: [] for name in PARAMETERS}
        for name, value in pairs:
            if name in given and (cleaned := clean_text(value)[0].strip()):
                given[name].append(_bounded(name, cleaned))
        for name, values in given.items():
            if len(values) > _MOST_VALUES:
                raise _bad(name, f"at most {_MOST_VALUES} values")
        statuses = _split(given["status"])
        if unknown := [each for each in statuses if each not in _STATUSES]:
            raise _bad("status", f"{unknown[0]!r} is none of {', '.join(sorted(_STATUSES))}")
        zone = _zone(given["tz"])
        from_at = _instant("from", given["from"], zone)
        to_at = _instant("to", given["to"], zone)
        if from_at is not None and to_at is not None and from_at >= to_at:
            raise _bad("to", "must be later than `from`")
        return cls(
            statuses, _split(given["agent"]), tuple(dict.fromkeys(given["customer"])), from_at, to_at,
            given["text"][-1] if given["text"] else None, tuple(dict.fromkeys(map(_label, given["label"]))),
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """Whether it means every task."""
        return self == TaskFilter()

    @property
    def task_id(self) -> UUID | None:
        """The one task that is looked for, when the text is a whole id."""
        try:
            return UUID(self.text) if self.text and len(self.text) == _ID_LENGTH else None
        except ValueError:
            return None

    def arguments(self) -> tuple[Any, ...]:
        """The first eight arguments of `lockkeeper.find_tasks` and `lockkeeper.task_summary`."""
        valued = {name: value for name, value in self.labels if value is not None}
        named = [name for name, value in self.labels if value is None]
        return (
            list(self.statuses) or None, list(self.agents) or None, list(self.customers) or None,
            self.from_at, self.to_at, None if self.text is None else _pattern(self.text), valued or None, named or None,
        )  # fmt: skip

    def wants_status(self, status: str) -> bool:
        """Whether a task in this status belongs to it, the rest of the filter aside."""
        return not self.statuses or status in self.statuses

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of `lockkeeper.task_overview` belongs to it, its status aside.

        Says of one row what `lockkeeper.find_tasks` says of all; a test holds the two equal.
        """
        if self.agents and row["agent"] not in self.agents:
            return False
        if self.customers and row["customer"] not in self.customers:
            return False
        created: datetime = row["created_at"]
        if (self.from_at and created < self.from_at) or (self.to_at and created >= self.to_at):
            return False
        if self.text and not any(
            self.text.casefold() in str(row[name]).casefold()
            for name in ("document_name", "customer", "id")
            if row[name] is not None
        ):
            return False
        labels: Mapping[str, Any] = row["labels"] or {}
        return all(name in labels and value in (None, labels[name]) for name, value in self.labels)


def _bad(name: str, message: str) -> RejectedError:
    return RejectedError(f"{name}: {message}", reason="bad_filter")


def _bounded(name: str, value: str) -> str:
    if len(value) > _LONGEST:
        raise _bad(name, f"at most {_LONGEST} characters")
    return value


def _split(values: list[str]) -> tuple[str, ...]:
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _zone(values: list[str]) -> ZoneInfo | None:
    if not values:
        return None
    try:
        return ZoneInfo(values[-1])
    except (ValueError, OSError, LookupError):
        raise _bad("tz", f"{values[-1]!r} is no time zone like Europe/Berlin") from None


def _instant(name: str, values: list[str], zone: ZoneInfo | None) -> datetime | None:
    if not values:
        return None
    try:
        # A "+" that nobody escaped arrives as a space; between time and zone nothing else can stand there.
        instant = datetime.fromisoformat(_ZONE_BEHIND_SPACE.sub(r"+\1", values[-1]))
    except ValueError:
        raise _bad(name, "is not an instant like 2026-01-31T00:00:00+01:00") from None
    if instant.tzinfo is None and zone is not None:
        # Kept in one zone from here on: a comparison inside a zone would not see its clock being set back.
        instant = instant.replace(tzinfo=zone).astimezone(UTC)
    if instant.tzinfo is None:
        raise _bad(name, "needs a time zone, like 2026-01-31T00:00:00+01:00, or `tz`")
    if not _FIRST_YEAR <= instant.year <= _LAST_YEAR:
        raise _bad(name, f"the year must be between {_FIRST_YEAR} and {_LAST_YEAR}")
    return instant


def _label(given: str) -> tuple[str, str | None]:
    name, equals, value = given.partition("=")
    return (name, value) if equals else (given, None)


def _pattern(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
