"""`lockkeeper costs`: what was spent, why a figure is what it is, and what is to come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from lockkeeper import show
from lockkeeper.api import Api, given
from lockkeeper.options import filters as filter_options
from lockkeeper.options import json_option, with_api

GROUPS = ["task", "agent", "customer", "status", "day", "month", "model", "outcome"]
FIGURES = ["total_cost", "llm_cost", "compute_cost", "retry_cost", "superseded_cost", "tokens"]
COLUMNS = (
    "key", "tasks", "attempts", "pages", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    "llm_cost", "compute_cost", "total_cost", "retry_cost", "superseded_cost", "median_cost", "p95_cost",
    "cost_per_page", "pending_tasks", "currency", "cost_status", "compute_status",
)  # fmt: skip
"""What people see; JSON and CSV hold everything."""

LINE_COLUMNS = (
    "record_id", "source", "outcome", "model", "input_tokens", "output_tokens", "quantity", "amount", "currency",
    "priced_by", "reason",
)  # fmt: skip
GAP_COLUMNS = (
    "agent", "part", "estimate", "bill", "gap", "named_by_trace", "not_in_table", "older_price", "not_billed_yet",
    "no_estimate", "corrections", "rate", "currency",
)  # fmt: skip
FORECAST_COLUMNS = (
    "agent", "waiting_tasks", "waiting_tokens", "llm_forecast", "compute_forecast", "total_forecast", "currency",
    "llm_tasks",
)  # fmt: skip
BUDGET_COLUMNS = (
    "scope", "name", "daily_budget", "spent_today", "reserved_today", "monthly_budget", "spent_this_month",
    "reserved_this_month", "cost_left",
)  # fmt: skip
_days = click.option("--days", type=click.IntRange(1, 3_650), help="Only tasks of the last so many days.")
_csv = click.option("--csv", "as_csv", is_flag=True, help="Answer in CSV.")


@click.group(invoke_without_command=True)
@click.option("--group-by", type=click.Choice(GROUPS), default="agent", show_default=True)
@filter_options
@_days
@click.option("--refresh", is_flag=True, help="Ask the billing tables first; their figures arrive a little later.")
@_csv
@json_option
@with_api
@click.pass_context
def costs(
    context: click.Context, api: Api, group_by: str, filters: dict[str, str | None], days: int | None,
    *, refresh: bool, as_csv: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show LLM and compute cost apart; what is not known yet is `pending`, never 0."""
    if context.invoked_subcommand is not None:
        return
    chosen = _within(filters, days)
    if refresh:
        span = {name: chosen[name] for name in ("from", "to")}
        answer = api.post("/costs/refresh", dict(given(span)))
        click.echo(f"asked the billing tables (request {answer['request_id']})", err=True)
    _show(api, "/costs", {"group_by": group_by, **chosen}, "costs", COLUMNS, as_csv=as_csv, as_json=as_json)


@costs.command("why")
@click.option("--figure", type=click.Choice(FIGURES), default="total_cost", show_default=True)
@click.option("--group-by", type=click.Choice(GROUPS), help="The grouping in whose row the figure stands.")
@click.option("--key", help="That row.")
@filter_options
@_days
@_csv
@json_option
@with_api
def why(
    api: Api, figure: str, group_by: str | None, key: str | None, filters: dict[str, str | None],
    *, days: int | None, as_csv: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show the ledger's lines that make a figure: records, usage, price."""
    query = {"figure": figure, "group_by": group_by, "key": key, **_within(filters, days)}
    _show(api, "/costs/lines", query, "lines", LINE_COLUMNS, as_csv=as_csv, as_json=as_json)


def _question(name: str, path: str, columns: tuple[str, ...], sentence: str) -> None:
    @costs.command(name, help=sentence)
    @filter_options
    @_days
    @_csv
    @json_option
    @with_api
    def ask(
        api: Api, filters: dict[str, str | None], days: int | None, *, as_csv: bool, as_json: bool
    ) -> None:  # fmt: skip
        _show(api, path, _within(filters, days), "rows", columns, as_csv=as_csv, as_json=as_json)


_question("reconcile", "/costs/reconciliation", GAP_COLUMNS, "Show estimate against bill and what the gap is made of.")
_question("forecast", "/costs/forecast", FORECAST_COLUMNS, "Show what the waiting tasks will cost.")


@costs.command("budgets")
@json_option
@with_api
def budgets(api: Api, *, as_json: bool) -> None:
    """Show budgets with what is spent and reserved of them, and what was told of them."""
    answer = api.get("/costs/budgets")
    if as_json:
        show.as_json(answer)
        return
    show.table(BUDGET_COLUMNS, [[row[name] for name in BUDGET_COLUMNS] for row in answer["budgets"]])
    for alert in answer["alerts"]:
        click.echo("{at}: {scope} {name} spent {share} of its budget for the {period}".format(**alert))


def _within(filters: dict[str, str | None], days: int | None) -> dict[str, str | None]:
    if days is None:
        return filters
    return {**filters, "from": (datetime.now(UTC) - timedelta(days=days)).isoformat()}


def _show(
    api: Api, path: str, query: dict[str, Any], rows_at: str, names: tuple[str, ...], *, as_csv: bool, as_json: bool
) -> None:
    if as_csv:
        click.echo(api.call("GET", path, params=given({**query, "format": "csv"})).text, nl=False)
        return
    answer = api.get(path, query)
    if as_json:
        show.as_json(answer)
        return
    rows = answer[rows_at]
    columns = [name for name in names if not rows or name in rows[0]]
    show.table(columns, [[_cell(name, row.get(name)) for name in columns] for row in rows])


def _cell(name: str, value: object) -> object:
    return show.money(value) if name.endswith(("_cost", "_page", "_forecast")) else value
