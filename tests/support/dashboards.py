"""The dashboards' panels: which stay without an answer, and a plain picture of them all.

The picture is drawn here, not by Grafana (whose licence keeps it out of the tests): same places, queries and legends.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.statements import ROOT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = ROOT / "deploy" / "observability" / "dashboards"
_UNITS: dict[str, Callable[[float], str]] = {
    "s": lambda value: f"{value:.3g} s",
    "bytes": lambda value: f"{value / 2**20:.3g} MiB",
    "percentunit": lambda value: f"{100 * value:.3g} %",
}

Ask = Callable[[str], Sequence[Any]]
"""A query for a Prometheus; its result."""


def empty_panels(ask: Ask) -> set[str]:
    """Panels' queries to which there is no answer now."""
    return {
        f"{path.stem}: {panel['title']}: {query}"
        for path in sorted(FOLDER.glob("*.json"))
        for panel in _panels(path)
        for query, _ in _queries(panel)
        if not ask(query)
    }


def draw(ask_range: Ask, folder: Path) -> None:
    """Each dashboard as a PNG of its own."""
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.json")):
        with mpl.rc_context({"font.size": 8, "axes.titlesize": 9}):
            _figure(path, ask_range).savefig(folder / f"{path.stem}.png", dpi=80)


def _figure(path: Path, ask_range: Ask) -> Figure:
    from matplotlib.figure import Figure

    panels = _panels(path)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(16, rows * 0.3))
    for panel in panels:
        place = panel["gridPos"]
        bottom = 1 - (place["y"] + place["h"] - 0.5) / rows
        area = ((place["x"] + 1.2) / 24, bottom, (place["w"] - 1.6) / 24, (place["h"] - 2) / rows)
        axes = figure.add_axes(area, title=panel["title"])
        unit = _UNITS.get(panel["fieldConfig"]["defaults"]["unit"], "{:.3g}".format)
        lines = [
            (legend.format_map(defaultdict(str, series["metric"])), series["values"])
            for query, legend in _queries(panel)
            for series in ask_range(query)
        ]
        if panel["type"] == "stat":
            axes.axis("off")
            axes.text(0.5, 0.4, " ".join(unit(float(values[-1][1])) for _, values in lines), ha="center", size=22)
            continue
        for legend, values in lines:
            axes.plot([at for at, _ in values], [_number(value) for _, value in values], label=legend)
        axes.yaxis.set_major_formatter(partial(_shown, unit))
        axes.xaxis.set_visible(False)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", fontsize=6)
    return figure


def _shown(unit: Callable[[float], str], value: float, _: int) -> str:
    return unit(value)


def _panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(path.read_text(encoding="utf-8"))["panels"] if panel["type"] != "row"]


def _queries(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each with its legend, as a format of the labels."""
    for target in panel["targets"]:
        yield target["expr"].replace("$agent", ".*"), re.sub(r"{{(\w+)}}", r"{\1}", target["legendFormat"])


def _number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else math.nan
