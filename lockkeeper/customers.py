"""`lockkeeper customers`: budgets over all agents, live."""

from __future__ import annotations

from urllib.parse import quote

import click
import yaml

from lockkeeper import show
from lockkeeper.api import Api
from lockkeeper.failure import CommandError
from lockkeeper.options import json_option, with_api

COLUMNS = ("name", "daily_budget", "monthly_budget", "version")
LEFT = ("spent_today", "spent_this_month", "reserved_this_month", "cost_left")


@click.group()
def customers() -> None:
    """See and set what customers may spend over all agents. Changes hold from the next claim on."""


@customers.command("list")
@json_option
@with_api
def list_(api: Api, *, as_json: bool) -> None:
    """List the customers that have budgets, in US dollars, and what these have left."""
    found = api.get("/customers")["customers"]
    if as_json:
        show.as_json({"customers": found})
        return
    rows = [[*(each[name] for name in COLUMNS), *((each["budget"] or {}).get(name) for name in LEFT)] for each in found]
    show.table((*COLUMNS, *LEFT), rows)


@customers.command("set")
@click.argument("name")
@click.argument("budgets", nargs=-1, required=True, metavar="BUDGET=DOLLARS…")
@json_option
@with_api
def set_(api: Api, name: str, budgets: tuple[str, ...], *, as_json: bool) -> None:
    """Set budgets of one customer, for example `daily_budget=20 monthly_budget=null`."""
    changes = {}
    for budget in budgets:
        key, equals, value = budget.partition("=")
        if not (key and equals):
            raise CommandError(f"a budget is NAME=DOLLARS, and {budget!r} is not", 2)
        amount = yaml.safe_load(value)
        changes[key] = amount if amount is None else str(amount)
    answer = api.call("PUT", f"/customers/{quote(name, safe='')}", json=changes).json()
    if as_json:
        show.as_json(answer)
    else:
        show.table(COLUMNS, [[answer[column] for column in COLUMNS]])
