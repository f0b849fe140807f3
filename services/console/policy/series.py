"""Totals by time as the points of charts: pure arithmetic over rows of `list_series`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

Row = Mapping[str, Any]
Points = list[tuple[datetime, float]]

_GROWTH = 1.1
_SHORTEST_SECONDS = 0.01
_HOURS = {"1h": 24, "24h": 24, "7d": 168}


@dataclass(frozen=True, slots=True)
class Window:
    """What the charts of a range show: by hour, or by day (UTC) where that would be too many points."""

    grain: Literal["hour", "day"]
    since: datetime
    until: datetime


def window_of(chosen: str, now: datetime) -> Window:
    """The window of a range's name; charts show a day at least."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    if chosen in _HOURS:
        return Window("hour", hour - timedelta(hours=_HOURS[chosen] - 1), hour + timedelta(hours=1))
    days = 30 if chosen == "30d" else 366
    return Window("day", day - timedelta(days=days - 1), day + timedelta(days=1))


@dataclass(slots=True)
class Moment:
    """The totals of one hour or day."""

    tasks: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    classes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))


SUMS = ("judged", "confidence", "input_tokens", "output_tokens", "llm_cost", "compute_cost")


def by_moment(rows: Iterable[Row]) -> dict[datetime, Moment]:
    """The rows of each bucket together."""
    found: dict[datetime, Moment] = defaultdict(Moment)
    for row in rows:
        moment = found[row["bucket"]]
        moment.tasks[row["status"]] += row["tasks"]
        if row["class"]:
            moment.classes[row["class"]] += row["tasks"]
        for name in SUMS:
            moment.sums[name] += float(row[name] or 0)
    return found


def percentile(classes: Mapping[int, int], part: float) -> float | None:
    """Seconds below which this part of the tasks responded; at most 5 % off, as the classes are."""
    wanted = part * sum(classes.values())
    before = 0
    for which in sorted(classes):
        if before + classes[which] >= wanted > 0:
            return float(_SHORTEST_SECONDS * _GROWTH ** (which - 1 + (wanted - before) / classes[which]))
        before += classes[which]
    return None


def moments(window: Window) -> Sequence[datetime]:
    """Every hour or day of a window."""
    step = timedelta(hours=1) if window.grain == "hour" else timedelta(days=1)
    return [window.since + step * number for number in range((window.until - window.since) // step)]


def throughput(ended: Mapping[datetime, Moment], window: Window, status: str) -> Points:
    """Tasks that ended so in each hour or day."""
    counted: dict[datetime, float] = dict.fromkeys(moments(window), 0.0)
    for at, moment in ended.items():
        bucket = at if window.grain == "hour" else at.replace(hour=0)
        if bucket in counted:
            counted[bucket] += moment.tasks.get(status, 0)
    return list(counted.items())


def sums(found: Mapping[datetime, Moment], window: Window, name: str) -> Points:
    """A sum in each hour or day; nothing happened is 0."""
    return [(at, found[at].sums[name] if at in found else 0.0) for at in moments(window)]


def response(found: Mapping[datetime, Moment], window: Window, part: float) -> Points:
    """Response times of the tasks that were accepted in each hour or day; none where none completed."""
    known = ((at, percentile(found[at].classes, part)) for at in moments(window) if at in found)
    return [(at, seconds) for at, seconds in known if seconds is not None]


def confidence(found: Mapping[datetime, Moment], window: Window) -> Points:
    """Mean confidence of the tasks that were accepted in each hour or day, in percent."""
    return [
        (at, 100 * found[at].sums["confidence"] / found[at].sums["judged"])
        for at in moments(window)
        if at in found and found[at].sums["judged"]
    ]
