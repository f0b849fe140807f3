"""`lockkeeper costs`: what was spent."""

from __future__ import annotations

import click

from lockkeeper import show
from lockkeeper.api import Api, given
from lockkeeper.options import filters as filter_options
from lockkeeper.options import json_option, with_api

GROUPS = ["task", "agent", "customer", "status"]
COLUMNS = (
    "key", "tasks", "attempts", "pages", "input_tokens", "output_tokens", "llm_cost", "compute_cost", "total_cost",
    "retry_cost", "cost_per_page", "pending_tasks", "currency", "cost_status",
)  # fmt: skip
"""What people see; JSON and CSV hold everything."""


@click.command()
@click.option("--group-by", type=click.Choice(GROUPS), default="agent", show_default=True)
@filter_options
@click.option("--refresh", is_flag=True, help="Ask the billing tables first; their figures arrive a little later.")
@click.option("--csv", "as_csv", is_flag=True, help="Answer in CSV.")
@json_option
@with_api
def costs(
    api: Api, group_by: str, filters: dict[str, str | None], *, refresh: bool, as_csv: bool, as_json: bool
) -> None:
    """Show LLM and compute cost apart; what is not known yet is `pending`, never 0."""
    if refresh:
        answer = api.post("/costs/refresh", dict(given(filters)))
        click.echo(f"asked the billing tables (request {answer['request_id']})", err=True)
    query = {"group_by": group_by, **filters}
    if as_csv:
        click.echo(api.call("GET", "/costs", params=given({**query, "format": "csv"})).text, nl=False)
        return
    answer = api.get("/costs", query)
    if as_json:
        show.as_json(answer)
        return
    rows = answer["costs"]
    columns = [name for name in COLUMNS if not rows or name in rows[0]]
    show.table(columns, [[_cell(name, row.get(name)) for name in columns] for row in rows])


def _cell(name: str, value: object) -> object:
    return show.money(value) if name.endswith(("_cost", "_page")) else value
