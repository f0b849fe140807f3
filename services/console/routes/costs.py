"""Costs: what was spent, by whom and for what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from services.console.messages.answers import Summary
from services.console.messages.costs import CostPage, CostRequest, LinePage, RefreshAnswer
from services.console.messages.requests import RefreshRequest
from services.console.policy.exports import csv_text
from services.console.policy.figures import BY_LINE, GroupBy, zone_named
from services.console.policy.paging import decode_cursor, encode_cursor
from services.console.routes.given import API, PROBLEMS, Actor, Cursor, Filter, Json, Limit
from services.console.routes.ledger import Format, csv_answer
from services.console.storage.costs import CostStorage
from services.console.storage.ledger import LedgerStorage
from services.console.storage.tasks import TaskStorage
from shared.contract.channels import Channel
from shared.contract.errors import MissingError, RejectedError
from shared.contract.shown import PENDING, TOKENS, UNKNOWN, UNPRICED, amount, shown_cost, shown_summary
from shared.contract.task_filter import TaskFilter
from shared.db.notes import Notes

_DAYS = 30
_LONGEST_DAYS = 366
_CSV_PAGE = 500
_NO_FILTER = frozenset({"group_by", "format", "cursor", "limit", "figure", "key", "currency"})
_PARTS = ("llm_cost", "compute_cost", "total_cost", "retry_cost", "superseded_cost")
_MONEY = (*_PARTS, "median_llm_cost", "median_cost", "p95_cost", "cost_per_page")
_COLUMNS = (
    "key", "tasks", "attempts", "pages", *TOKENS, *_MONEY, "pending_tasks", "preliminary_tasks", "currency",
    "cost_status", "compute_status",
)  # fmt: skip
_LINE_COLUMNS = ("key", "tasks", "attempts", *TOKENS, *_PARTS, "unpriced_lines", "currency")


@dataclass(frozen=True, slots=True)
class Grouping:
    """What the rows of an answer are, whose days and months, and the rest of the query."""

    group_by: GroupBy
    zone: str
    query: tuple[tuple[str, str], ...]

    def why(self, row: dict[str, Any]) -> str:
        """Where the lines of a row stand."""
        row_of = [("group_by", self.group_by), ("key", row["key"] or ""), ("currency", row["currency"])]
        return f"/costs/why?{urlencode([*self.query, *row_of])}"


def grouping(
    request: Request,
    group_by: GroupBy = "agent",
    tz: Annotated[str, Query(description="the zone of days and months, and of instants that name none")] = "UTC",
) -> Grouping:
    """The grouping that the query means."""
    query = [pair for pair in request.query_params.multi_items() if pair[0] not in _NO_FILTER]
    return Grouping(group_by, zone_named(tz), tuple(query))


class CostRoutes:
    """`/costs` and `/summary`."""

    def __init__(self, storage: CostStorage, ledger: LedgerStorage, tasks: TaskStorage, notes: Notes) -> None:
        self._storage = storage
        self._ledger = ledger
        self._tasks = tasks
        self._notes = notes

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["costs"], responses=PROBLEMS)
        router.add_api_route("/summary", self.summary, methods=["GET"], response_model=Summary)
        router.add_api_route("/costs", self.costs, methods=["GET"], response_model=CostPage | LinePage)
        router.add_api_route(
            "/costs/refresh", self.refresh, methods=["POST"], status_code=202, response_model=RefreshAnswer
        )
        router.add_api_route("/costs/requests/{request_id}", self.request, methods=["GET"], response_model=CostRequest)
        return router

    async def summary(self, chosen: Filter) -> Response:
        """Counts by status, tokens, costs, response times and confidence of the tasks that the filter means."""
        return Json(shown_summary(await self._tasks.summarise_tasks(chosen)))

    async def costs(
        self, chosen: Filter, rows_of: Annotated[Grouping, Depends(grouping)], form: Format = "json",
        cursor: Cursor = None, limit: Limit = 200,
    ) -> Response:  # fmt: skip
        """Costs by group, currencies apart; averages leave out tasks whose cost is pending.

        `why` of a row is the page of its lines: `&figure=` names one of its amounts. Only groups by task are paged.
        """
        group_by, zone = rows_of.group_by, rows_of.zone
        if form == "csv":
            return await csv_answer(f"lockkeeper-costs-by-{group_by}.csv", self._csv(group_by, zone, chosen))
        following = None
        if group_by == "task":
            rows = await self._storage.list_task_costs(chosen, decode_cursor(cursor), limit)
            if len(rows) == limit:
                following = encode_cursor(rows[-1]["created_at"], rows[-1]["id"])
            shown = [_shown_task(row) for row in rows]
        else:
            shown = await self._groups(group_by, zone, chosen)
        for row in shown:
            row["why"] = rows_of.why(row)
        return Json({"group_by": group_by, "costs": shown, "next_cursor": following})

    async def _groups(self, group_by: GroupBy, zone: str, chosen: TaskFilter) -> list[dict[str, Any]]:
        if group_by in BY_LINE:
            return [_shown_lines(row) for row in await self._ledger.sum_lines(group_by, chosen)]
        return [_shown_group(row) for row in await self._storage.sum_costs(group_by, zone, chosen)]

    async def refresh(self, actor: Actor, body: RefreshRequest | None = None) -> Response:
        """Ask the billing tables; the figures arrive a little later. An open request for the range is reused."""
        from_at, to_at = _range(body)
        request_id, is_new = await self._storage.request_costs(actor, from_at, to_at)
        if is_new:
            self._notes.send(Channel.COST_REQUESTED, [request_id])
        return Json({"request_id": request_id}, 202, {"Location": f"/api/v1/costs/requests/{request_id}"})

    async def request(self, request_id: UUID) -> Response:
        """How far a refresh is."""
        row = await self._storage.read_request(request_id)
        if row is None:
            raise MissingError(f"There is no cost request {request_id}.")
        return Json(dict(row))

    async def _csv(self, group_by: GroupBy, zone: str, chosen: TaskFilter) -> AsyncIterator[str]:
        columns = _LINE_COLUMNS if group_by in BY_LINE else _COLUMNS
        heading = csv_text([[group_by, *columns[1:]]])
        if group_by != "task":
            yield heading + csv_text(_cells(row, columns) for row in await self._groups(group_by, zone, chosen))
            return
        rows = await self._storage.list_task_costs(chosen, (None, None), _CSV_PAGE)
        yield heading + csv_text(_cells(_shown_task(row), columns) for row in rows)
        while len(rows) == _CSV_PAGE:
            rows = await self._storage.list_task_costs(chosen, (rows[-1]["created_at"], rows[-1]["id"]), _CSV_PAGE)
            yield csv_text(_cells(_shown_task(row), columns) for row in rows)


def _range(body: RefreshRequest | None) -> tuple[datetime, datetime]:
    """The range to ask about; by default whole days, so that people who ask on one day share one request."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    to_at = (body and body.to_at) or today + timedelta(days=1)
    from_at = (body and body.from_at) or to_at - timedelta(days=_DAYS)
    if from_at >= to_at:
        raise RejectedError("to: must be later than `from`", reason="not_valid")
    if to_at - from_at > timedelta(days=_LONGEST_DAYS):
        raise RejectedError(f"from: the range is longer than {_LONGEST_DAYS} days", reason="not_valid")
    return from_at, to_at


def _shown_group(row: Any) -> dict[str, Any]:
    is_free = row["attempts"] == 0
    parts = {name: Decimal(0) if row[name] is None and is_free else row[name] for name in ("llm_cost", "compute_cost")}
    known = [value for value in parts.values() if value is not None]
    return {
        "key": row["key"],
        **{name: row[name] for name in ("tasks", "attempts", "pages", *TOKENS)},
        **{name: amount(value) for name, value in parts.items()},
        **{name: amount(row[name] or Decimal(0)) for name in ("retry_cost", "superseded_cost")},
        "total_cost": amount(sum(known, Decimal(0)) if known else None),
        **{name: amount(row[name]) for name in ("median_llm_cost", "median_cost", "p95_cost", "cost_per_page")},
        "pending_tasks": row["pending_tasks"],
        "preliminary_tasks": row["preliminary_tasks"],
        "currency": row["currency"],
        "cost_status": PENDING if row["pending_tasks"] else "final",
        "compute_status": _compute_status(row),
    }


def _compute_status(row: Any) -> str:
    if row["pending_tasks"]:
        return PENDING
    return "preliminary" if row["preliminary_tasks"] else "final"


def _shown_lines(row: Any) -> dict[str, Any]:
    """A group of lines. Where no line of a kind is, nothing of it was spent; a line without a price says so."""
    unpriced = UNPRICED if row["unpriced_lines"] else "0"
    known = [row[name] for name in ("llm_cost", "compute_cost") if row[name] is not None]
    return {
        **{name: row[name] for name in ("key", "tasks", "attempts", *TOKENS)},
        **{name: amount(row[name], unpriced) for name in ("llm_cost", "compute_cost")},
        "total_cost": amount(sum(known, Decimal(0)) if known else None, unpriced),
        **{name: amount(row[name] or Decimal(0)) for name in ("retry_cost", "superseded_cost")},
        "unpriced_lines": row["unpriced_lines"],
        "currency": row["currency"],
    }


def _shown_task(row: Any) -> dict[str, Any]:
    cost = shown_cost(row)
    if row["compute_cost"] is None and row["compute_status"] == UNKNOWN:
        # The bill was read long after the end, and does not mention the run.
        cost["compute_cost"] = UNKNOWN
    is_known = row["llm_cost"] is not None and row["compute_cost"] is not None
    total = amount(row["llm_cost"] + row["compute_cost"]) if is_known else _unknown_total(cost)
    per_page = (
        amount((Decimal(total) / row["pages"]).quantize(Decimal("1e-9"))) if is_known and row["pages"] else PENDING
    )
    return {
        "key": str(row["id"]),
        "tasks": 1,
        **{name: row[name] for name in ("attempts", "pages", *TOKENS)},
        "llm_cost": cost["llm_cost"],
        "compute_cost": cost["compute_cost"],
        "total_cost": total,
        "retry_cost": cost["retry_cost"] or "0",
        "superseded_cost": amount(row["superseded_cost"] or Decimal(0)),
        "median_llm_cost": cost["llm_cost"],
        "median_cost": total,
        "p95_cost": total,
        "cost_per_page": per_page,
        "pending_tasks": int(PENDING in {cost["llm_cost"], cost["compute_cost"]}),
        "preliminary_tasks": int(row["compute_status"] == "preliminary"),
        "currency": row["currency"],
        "cost_status": cost["cost_status"],
        "compute_status": "final" if cost["compute_cost"] == "0" else row["compute_status"],
    }


def _unknown_total(cost: dict[str, Any]) -> str:
    parts = {cost["llm_cost"], cost["compute_cost"]}
    return "0" if parts == {"0"} else next(word for word in (PENDING, UNKNOWN, UNPRICED, "0") if word in parts)


def _cells(shown: dict[str, Any], columns: Sequence[str]) -> list[object]:
    """A row for a spreadsheet; amounts as numbers, so that a negative correction is not taken for a formula."""
    return [_number(shown[name]) if name in _MONEY else shown[name] for name in columns]


def _number(value: str) -> object:
    return Decimal(value) if value[-1:].isdigit() else value
