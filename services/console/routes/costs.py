"""Costs: what was spent, by whom and for what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from services.console.messages.answers import CostPage, CostRequest, RefreshAnswer, Summary
from services.console.messages.requests import RefreshRequest
from services.console.policy.exports import csv_text
from services.console.policy.paging import decode_cursor, encode_cursor
from services.console.routes.given import API, PROBLEMS, Actor, Cursor, Filter, Json, Limit
from services.console.storage.costs import CostStorage
from services.console.storage.tasks import TaskStorage
from shared.contract.channels import Channel
from shared.contract.errors import MissingError, RejectedError
from shared.contract.shown import PENDING, TOKENS, UNKNOWN, UNPRICED, amount, shown_cost, shown_summary
from shared.contract.task_filter import TaskFilter
from shared.db.notes import Notes

GroupBy = Literal["task", "agent", "customer", "status"]
Format = Literal["json", "csv"]

_DAYS = 30
_LONGEST_DAYS = 366
_CSV_PAGE = 500
_MONEY = ("llm_cost", "compute_cost", "total_cost", "retry_cost", "median_llm_cost", "median_cost", "cost_per_page")
_COLUMNS = ("key", "tasks", "attempts", "pages", *TOKENS, *_MONEY, "pending_tasks", "currency", "cost_status")


class CostRoutes:
    """`/costs` and `/summary`."""

    def __init__(self, storage: CostStorage, tasks: TaskStorage, notes: Notes) -> None:
        self._storage = storage
        self._tasks = tasks
        self._notes = notes

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["costs"], responses=PROBLEMS)
        router.add_api_route("/summary", self.summary, methods=["GET"], response_model=Summary)
        router.add_api_route("/costs", self.costs, methods=["GET"], response_model=CostPage)
        router.add_api_route(
            "/costs/refresh", self.refresh, methods=["POST"], status_code=202, response_model=RefreshAnswer
        )
        router.add_api_route("/costs/requests/{request_id}", self.request, methods=["GET"], response_model=CostRequest)
        return router

    async def summary(self, chosen: Filter) -> Response:
        """Counts by status, tokens, costs, response times and confidence of the tasks that the filter means."""
        return Json(shown_summary(await self._tasks.summarise_tasks(chosen)))

    async def costs(
        self, chosen: Filter, group_by: GroupBy = "agent",
        form: Annotated[Format, Query(alias="format")] = "json", cursor: Cursor = None, limit: Limit = 200,
    ) -> Response:  # fmt: skip
        """Costs by group; averages leave out tasks whose cost is pending. Only groups by task are paged."""
        if form == "csv":
            name = f"lockkeeper-costs-by-{group_by}.csv"
            headers = {"Content-Disposition": f'attachment; filename="{name}"'}
            first = await anext(lines := self._csv(group_by, chosen))
            return StreamingResponse(_chained(first, lines), headers=headers, media_type="text/csv; charset=utf-8")
        following = None
        if group_by == "task":
            rows = await self._storage.list_task_costs(chosen, decode_cursor(cursor), limit)
            if len(rows) == limit:
                following = encode_cursor(rows[-1]["created_at"], rows[-1]["id"])
            shown = [_shown_task(row) for row in rows]
        else:
            shown = [_shown_group(row) for row in await self._storage.sum_costs(group_by, chosen)]
        return Json({"group_by": group_by, "costs": shown, "next_cursor": following})

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

    async def _csv(self, group_by: GroupBy, chosen: TaskFilter) -> AsyncIterator[str]:
        heading = csv_text([[group_by, *_COLUMNS[1:]]])
        if group_by != "task":
            rows = await self._storage.sum_costs(group_by, chosen)
            yield heading + csv_text(_line(_shown_group(row)) for row in rows)
            return
        rows = await self._storage.list_task_costs(chosen, (None, None), _CSV_PAGE)
        yield heading + csv_text(_line(_shown_task(row)) for row in rows)
        while len(rows) == _CSV_PAGE:
            rows = await self._storage.list_task_costs(chosen, (rows[-1]["created_at"], rows[-1]["id"]), _CSV_PAGE)
            yield csv_text(_line(_shown_task(row)) for row in rows)


async def _chained(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for each in rest:
        yield each


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
    known = {name: row[name] for name in ("llm_cost", "compute_cost", "retry_cost")}
    is_free = row["attempts"] == 0
    money = {name: amount(value if value is not None or not is_free else Decimal(0)) for name, value in known.items()}
    parts = [value for name, value in known.items() if name != "retry_cost" and value is not None]
    return {
        "key": row["key"],
        **{name: row[name] for name in ("tasks", "attempts", "pages", *TOKENS)},
        **money,
        "retry_cost": amount(known["retry_cost"] or Decimal(0)),
        "total_cost": amount(sum(parts, Decimal(0)) if parts or is_free else None),
        **{name: amount(row[name]) for name in ("median_llm_cost", "median_cost", "cost_per_page")},
        "pending_tasks": row["pending_tasks"],
        "currency": row["currency"],
        "cost_status": PENDING if row["pending_tasks"] else "final",
    }


def _shown_task(row: Any) -> dict[str, Any]:
    cost = shown_cost(row)
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
        "median_llm_cost": cost["llm_cost"],
        "median_cost": total,
        "cost_per_page": per_page,
        "pending_tasks": int(PENDING in {cost["llm_cost"], cost["compute_cost"]}),
        "currency": row["currency"],
        "cost_status": cost["cost_status"],
    }


def _unknown_total(cost: dict[str, Any]) -> str:
    parts = {cost["llm_cost"], cost["compute_cost"]}
    return "0" if parts == {"0"} else next(word for word in (PENDING, UNKNOWN, UNPRICED, "0") if word in parts)


def _line(shown: dict[str, Any]) -> list[object]:
    """A row for a spreadsheet; amounts as numbers, so that a negative correction is not taken for a formula."""
    return [_number(shown[name]) if name in _MONEY else shown[name] for name in _COLUMNS]


def _number(value: str) -> object:
    return Decimal(value) if value[-1:].isdigit() else value
