"""`/charts`: the overview's charts as a piece of a page, from the totals, however many tasks there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import APIRouter, Query
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from services.console.policy import series
from services.console.policy.drawing import Line, Unit, draw, worded
from services.console.routes.given import Filter
from services.console.routes.pages import Templates
from services.console.storage.totals import TotalsStorage


class ChartRoutes:
    """The one path; no part of the API's reference, since its form belongs to the pages."""

    def __init__(self, storage: TotalsStorage, templates: Templates) -> None:
        self._storage = storage
        self._templates = templates

    def router(self) -> APIRouter:
        """The path."""
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        router.add_api_route("/charts", self.charts, methods=["GET"])
        return router

    async def charts(
        self, chosen: Filter, span: Annotated[str, Query(alias="range", max_length=10)] = "7d",
        zone: Annotated[str, Query(max_length=60)] = "UTC",
    ) -> Response:  # fmt: skip
        """Throughput, response time, tokens, cost and confidence over time, and the largest agents and customers."""
        window = series.window_of(span, datetime.now(UTC))
        day = window.since.replace(hour=0)
        accepted, ended, agents, customers = await asyncio.gather(
            self._storage.list_series(window.grain, chosen, window.since, window.until),
            self._storage.list_series("ended", chosen, window.since, window.until),
            self._storage.list_shares("agent", chosen, day, window.until),
            self._storage.list_shares("customer", chosen, day, window.until),
        )
        pictures = _pictures(series.by_moment(accepted), series.by_moment(ended), window, _zone(zone))
        shares = [("agent", agents)] if chosen.customers else [("agent", agents), ("customer", customers)]
        return self._templates.page(
            "charts.html", pictures=pictures, is_daily=window.grain == "day", worded=worded,
            shares=[(name, _shares(rows)) for name, rows in shares if not (name == "customer" and chosen.agents)],
            hours=round((window.until - window.since) / timedelta(hours=1)),
        )  # fmt: skip


def _pictures(
    accepted: dict[datetime, series.Moment], ended: dict[datetime, series.Moment], window: series.Window, zone: ZoneInfo
) -> list[dict[str, Any]]:
    per = "day" if window.grain == "day" else "hour"

    def one(title: str, unit: Unit, *lines: Line) -> dict[str, Any]:
        latest = ", ".join(f"{line.name} {worded(line.points[-1][1], unit)}" for line in lines if line.points)
        svg = draw(lines, unit, f"{title}; latest: {latest}", zone, by_day=window.grain == "day")
        return {"title": title, "lines": lines, "svg": Markup(svg)}  # noqa: S704 - drawn by us from numbers

    return [
        one(f"Ended per {per}", "tasks",
            Line("completed", "--good", series.throughput(ended, window, "completed")),
            Line("failed", "--bad", series.throughput(ended, window, "failed"))),
        one("Response time", "seconds",
            Line("median", "--run", series.response(accepted, window, 0.5)),
            Line("p95", "--off", series.response(accepted, window, 0.95))),
        one(f"Tokens per {per}", "tokens",
            Line("in", "--run", series.sums(accepted, window, "input_tokens")),
            Line("out", "--off", series.sums(accepted, window, "output_tokens"))),
        one(f"Cost per {per}", "money",
            Line("LLM", "--run", series.sums(accepted, window, "llm_cost")),
            Line("compute", "--off", series.sums(accepted, window, "compute_cost"))),
        one("Confidence", "percent", Line("mean", "--good", series.confidence(accepted, window))),
    ]  # fmt: skip


def _shares(rows: Sequence[Any]) -> list[dict[str, Any]]:
    most = max((row["tasks"] for row in rows), default=1)
    return [{**row, "part": round(100 * row["tasks"] / most, 1)} for row in rows]


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
