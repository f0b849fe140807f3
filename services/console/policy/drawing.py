"""Draws lines as SVG: leather makes the picture, the page's style sheet gives it the colours of light and dark."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from html import escape
from typing import Literal

import leather

from services.console.policy.series import Points

WIDTH, HEIGHT = 460, 220
_DIGITS = re.compile(r"(\d+\.\d)\d+")
Unit = Literal["tasks", "seconds", "tokens", "money", "percent"]

leather.theme.background_color = "none"
leather.theme.margin = 0.012
leather.theme.default_series_colors = ["currentColor"]
leather.theme.tick_font_size = 11
leather.theme.tick_size = 0
leather.theme.legend_font_char_height = leather.theme.legend_gap = 0


class Stroke(leather.Line):  # type: ignore[misc]
    """A line whose legend stands beside the chart, where it can be read and styled."""

    def legend_to_svg(self, *_: object) -> list[object]:
        """None inside of the picture."""
        return []


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, the CSS custom property of its colour, its points."""

    name: str
    colour: str
    points: Points


def worded(value: float, unit: Unit) -> str:
    """A value as people read it on an axis."""
    if unit == "seconds":
        return _seconds(value)
    if unit == "percent":
        return f"{value:.0f} %"
    prefix = "$" if unit == "money" else ""
    if unit == "money" and 0.1 <= abs(value) < 1e3:
        return f"${value:.2f}"
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{prefix}{value / size:.3g}{letter}"
    return f"{prefix}{value:.3g}"


def draw(lines: Sequence[Line], unit: Unit, label: str, zone: tzinfo, *, by_day: bool) -> str:
    """The chart as SVG text that fits any width; an empty one when there is nothing to show."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return ""
    chart = leather.Chart()
    highest = max(value for line in drawn for _, value in line.points)
    top = _round_top(highest)
    for line in drawn:
        local = [(_local(at, zone, by_day=by_day), value) for at, value in line.points]
        points = leather.Series(local if len(local) > 1 else local * 2)
        chart.add_series(points, Stroke(f"var({line.colour})", 2))
    moments = sorted({_local(at, zone, by_day=by_day) for line in drawn for at, _ in line.points})
    if len(moments) > 1:
        chart.add_x_scale(moments[0], moments[-1])
    pattern = "%-d %b" if by_day or len(moments) > 30 else "%H:%M"
    shown = moments[:: max(1, math.ceil(len(moments) / 5))]
    chart.add_x_axis(ticks=shown, tick_formatter=lambda value, _i, _c: value.strftime(pattern))
    chart.add_y_scale(0, top)
    chart.add_y_axis(ticks=[0, top / 2, top], tick_formatter=lambda value, _i, _c: worded(value, unit))
    # A tenth of a unit is finer than any screen; the rest of the digits would be most of the page's weight.
    text = _DIGITS.sub(r"\1", chart.to_svg(width=WIDTH, height=HEIGHT))
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
    return opening + text.partition("<svg ")[2].replace(f'width="{WIDTH}" height="{HEIGHT}" ', "", 1)


def _local(at: datetime, zone: tzinfo, *, by_day: bool) -> datetime:
    return at.replace(tzinfo=None) if by_day else at.astimezone(zone).replace(tzinfo=None)


def _round_top(highest: float) -> float:
    if highest <= 0:
        return 1
    size = 10 ** math.floor(math.log10(highest))
    return float(next(factor * size for factor in (1, 2, 4, 5, 10) if factor * size >= highest))


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0"
    if value < 100:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 5400 else f"{value / 3600:.3g} h"
