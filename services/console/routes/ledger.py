"""Every figure followed to its lines; estimates against bills; what the backlog will cost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from services.console.messages.costs import Budgets, Forecast, Reconciliation, Why
from services.console.policy.exports import csv_text
from services.console.policy.figures import Figure, FigureName, GroupBy, decode_line, encode_line, zone_named
from services.console.routes.given import API, PROBLEMS, Filter, Json, Limit
from services.console.routes.pages import Templates
from services.console.storage.ledger import LedgerStorage
from shared.contract.shown import PENDING, TOKENS, UNPRICED, amount
from shared.contract.task_filter import TaskFilter

Format = Annotated[Literal["json", "csv"], Query(alias="format")]
LineCursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=2_000)]

NO_HISTORY = "no_history"
_CSV_PAGE = 500
_PRICE = ("input_price", "output_price", "cache_read_price", "cache_write_price")
_GAP = (
    "estimate", "bill", "gap", "named_by_trace", "not_in_table", "older_price", "not_billed_yet", "no_estimate",
    "corrections", "rate",
)  # fmt: skip
_LINE_COLUMNS = (
    "source", "record_id", "attempt_id", "task_id", "attempt", "outcome", "run_id", "agent", "customer", "kind",
    "model", *TOKENS, "quantity", "unit", "sku", "amount", "list_amount", "currency", "priced_by", "price_id",
    "record_type", "bill_status", "usage_start_at", "usage_end_at", "recorded_at", "version", "reason",
)  # fmt: skip


def figure(
    name: Annotated[FigureName, Query(alias="figure")] = "total_cost",
    group_by: Annotated[GroupBy | None, Query(description="the grouping in whose row the figure stands")] = None,
    key: Annotated[str | None, Query(max_length=200, description="that row; empty: the row without a key")] = None,
    tz: Annotated[str, Query(description="the time zone of days and months")] = "UTC",
    currency: Annotated[str | None, Query(pattern="^[A-Z]{3}$")] = None,
) -> Figure:
    """The figure that a link means."""
    grouping = group_by if key is not None else None
    return Figure(name, grouping, key or None, zone_named(tz), currency)


Chosen = Annotated[Figure, Depends(figure)]


class LedgerRoutes:
    """`/costs/lines` and the page of it, `/costs/reconciliation`, `/costs/forecast`."""

    def __init__(self, storage: LedgerStorage, templates: Templates) -> None:
        self._storage = storage
        self._templates = templates

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(tags=["costs"], responses=PROBLEMS)
        costs = f"{API}/costs"
        router.add_api_route(f"{costs}/lines", self.lines, methods=["GET"], response_model=Why)
        router.add_api_route(f"{costs}/reconciliation", self.reconcile, methods=["GET"], response_model=Reconciliation)
        router.add_api_route(f"{costs}/forecast", self.forecast, methods=["GET"], response_model=Forecast)
        router.add_api_route(f"{costs}/budgets", self.budgets, methods=["GET"], response_model=Budgets)
        router.add_api_route(
            "/costs/why", self.page, methods=["GET", "HEAD"], include_in_schema=False, response_class=HTMLResponse
        )
        return router

    async def lines(
        self, chosen: Filter, wanted: Chosen, form: Format = "json", cursor: LineCursor = None, limit: Limit = 200
    ) -> Response:
        """The ledger's lines behind a figure, each with its price and what it said before."""
        if form == "csv":
            return await csv_answer("lockkeeper-ledger.csv", self._csv(chosen, wanted))
        return Json(await self._why(chosen, wanted, cursor, limit))

    async def page(
        self, request: Request, chosen: Filter, wanted: Chosen, cursor: LineCursor = None, limit: Limit = 200
    ) -> Response:
        """The same for people."""
        why = await self._why(chosen, wanted, cursor, limit)
        following = query_of(request, cursor=why["next_cursor"]) if why["next_cursor"] else None
        return self._templates.page("why.html", why=why, following=following)

    async def reconcile(self, chosen: Filter, form: Format = "json") -> Response:
        """Estimate against bill by agent, and what the gap is made of."""
        rows = [
            {**row, **{name: amount(row[name]) for name in _GAP}} for row in await self._storage.reconcile_costs(chosen)
        ]
        return await _table("reconciliation", rows, form)

    async def forecast(self, chosen: Filter, form: Format = "json") -> Response:
        """What the waiting tasks will cost by what finished ones did; `no_history` where nothing finished yet."""
        names = ("llm_forecast", "compute_forecast", "total_forecast")
        rows = [
            {**row, **{name: amount(row[name], NO_HISTORY) for name in names}}
            for row in await self._storage.forecast_costs(chosen)
        ]
        return await _table("forecast", rows, form)

    async def budgets(self, limit: Limit = 100) -> Response:
        """Budgets of agents and customers, and what was told of them."""
        budgets = [{name: _shown(value) for name, value in row.items()} for row in await self._storage.list_budgets()]
        alerts = [
            {name: _shown(value) for name, value in row.items()}
            for row in await self._storage.list_budget_alerts(limit)
        ]
        return Json({"budgets": budgets, "alerts": alerts})

    async def _why(self, chosen: TaskFilter, wanted: Figure, cursor: str | None, limit: int) -> dict[str, Any]:
        rows = await self._storage.list_lines(chosen, wanted, decode_line(cursor), limit)
        totals = await self._storage.sum_chosen_lines(chosen, wanted)
        earlier: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for version in await self._storage.list_line_versions([row for row in rows if row["version"] > 1]):
            earlier[_key(version)].append(_earlier(version))
        last = rows[-1] if len(rows) == limit else None
        return {
            "figure": wanted.name,
            "group_by": wanted.group_by,
            "key": wanted.key,
            "totals": [{**row, "amount": amount(row["amount"])} for row in totals],
            "lines": [_line(row, earlier[_key(row)]) for row in rows],
            "next_cursor": None if last is None else encode_line(*_key(last)),
        }

    async def _csv(self, chosen: TaskFilter, wanted: Figure) -> AsyncIterator[str]:
        yield csv_text([_LINE_COLUMNS])
        after: Any = (None, "", "")
        while rows := await self._storage.list_lines(chosen, wanted, after, _CSV_PAGE):
            yield csv_text([[_cell(row[name]) for name in _LINE_COLUMNS] for row in rows])
            after = _key(rows[-1])


def query_of(request: Request, **changed: str) -> str:
    """The query of a request with some parameters given anew."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in changed]
    return urlencode([*kept, *changed.items()])


async def csv_answer(name: str, lines: AsyncIterator[str]) -> Response:
    """A CSV file for a spreadsheet. What is wrong with the question shows before the answer begins."""
    begun = [piece for _ in range(2) if (piece := await anext(lines, None)) is not None]

    async def pieces() -> AsyncIterator[str]:
        for piece in begun:
            yield piece
        async for piece in lines:
            yield piece

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(pieces(), headers=headers, media_type="text/csv; charset=utf-8")


async def _table(name: str, rows: Sequence[Mapping[str, Any]], form: str) -> Response:
    if form == "json":
        return Json({"rows": rows})

    async def lines() -> AsyncIterator[str]:
        columns = list(rows[0]) if rows else ["agent"]
        yield csv_text([columns, *([_number(row[each]) for each in columns] for row in rows)])

    return await csv_answer(f"lockkeeper-{name}.csv", lines())


_NEGATIVE = re.compile(r"-[0-9]+(\.[0-9]+)?")


def _number(value: object) -> object:
    """An amount as a number, so that a negative one is not taken for a formula."""
    return Decimal(value) if isinstance(value, str) and _NEGATIVE.fullmatch(value) else value


def _cell(value: object) -> object:
    return format(value, "f") if isinstance(value, Decimal) and value >= 0 else value


def _shown(value: Any) -> Any:
    return format(value, "f") if isinstance(value, Decimal) else value


def _key(row: Mapping[str, Any]) -> tuple[Any, str, str]:
    return row["attempt_id"], row["source"], row["record_id"]


def _text(value: Decimal | int | None) -> str | None:
    return None if value is None else format(value, "f") if isinstance(value, Decimal) else str(value)


def _earlier(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = (
        "version", "currency", *TOKENS, "priced_by", "price_id", "reason", "recorded_at", "replaced_at",
    )  # fmt: skip
    return {
        **{name: row[name] for name in kept},
        "amount": amount(row["amount"], UNPRICED),
        "quantity": _text(row["quantity"]),
    }


def _line(row: Mapping[str, Any], earlier: Iterable[dict[str, Any]]) -> dict[str, Any]:
    price = None
    if row["price_id"] is not None and row["input_price"] is not None:
        when = {name: row[name] for name in ("valid_from", "valid_to", "retired_at")}
        price = {
            "id": row["price_id"],
            **{name: amount(row[name]) for name in _PRICE},
            "note": row["price_note"],
            **when,
        }
    left_out = {*_PRICE, "valid_from", "valid_to", "retired_at", "price_note", "price_id"}
    return {
        **{name: value for name, value in row.items() if name not in left_out},
        "run_id": _text(row["run_id"]),
        "quantity": _text(row["quantity"]),
        "amount": amount(row["amount"], UNPRICED),
        "list_amount": _text(row["list_amount"]),
        "price": price,
        "bill_status": row["bill_status"] or (PENDING if row["source"] == "billing" else None),
        "earlier": list(earlier),
    }
