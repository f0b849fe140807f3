"""`lockkeeper prices`: what tokens cost, dated; and history at new prices."""

from __future__ import annotations

import csv
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from lockkeeper import show
from lockkeeper.api import Api, Json
from lockkeeper.failure import CommandError
from lockkeeper.options import json_option, with_api

COLUMNS = (
    "model", "currency", "input_price", "output_price", "cache_read_price", "cache_write_price", "valid_from",
    "valid_to", "note",
)  # fmt: skip
NEEDED = ("model", "input_price", "output_price", "valid_from")


@click.group()
def prices() -> None:
    """See and change prices per million tokens. A change never touches what is priced already; `reprice` does."""


@prices.command("list")
@click.option("--model", help="Only this model's prices.")
@click.option("--retired", is_flag=True, help="Also prices that were replaced.")
@json_option
@with_api
def list_(api: Api, model: str | None, *, retired: bool, as_json: bool) -> None:
    """List the price table."""
    found = api.get("/prices", {"model": model, "retired": "true" if retired else None})["prices"]
    if as_json:
        show.as_json({"prices": found})
        return
    columns = (*COLUMNS, "retired_at") if retired else COLUMNS
    show.table(columns, [[row[name] for name in columns] for row in found])


@prices.command("import")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@with_api
def import_(api: Api, file: Path | None, *, as_json: bool) -> None:
    """Put the prices of a CSV FILE into force; without one, the providers' list prices of this version.

    Columns: model, currency, input_price, output_price, cache_read_price, cache_write_price, valid_from, note.
    What is the same already stays; a price that differs from one of the same instant replaces it.
    """
    text = (file or files("lockkeeper").joinpath("list_prices.csv")).read_text(encoding="utf-8")
    _tell(api.call("PUT", "/prices", json={"prices": read_prices(text)}).json(), as_json=as_json)


def read_prices(text: str) -> list[Json]:
    """The prices of a CSV. Raises CommandError for one that lacks a column or a value."""
    rows = list(csv.DictReader(text.splitlines()))
    for number, row in enumerate(rows, 2):
        if missing := [name for name in NEEDED if not row.get(name)]:
            raise CommandError(f"line {number} has no {missing[0]}", 2)
    if not rows:
        raise CommandError("the file holds no prices", 2)
    return [{name: value for name, value in row.items() if name and value} for row in rows]


@prices.command("set")
@click.argument("model")
@click.option("--from", "valid_from", required=True, metavar="WHEN", help="In force from this instant on (ISO 8601).")
@click.option("--input", "input_price", required=True, metavar="PRICE", help="Per million input tokens.")
@click.option("--output", "output_price", required=True, metavar="PRICE", help="Per million output tokens.")
@click.option("--cache-read", default="0", show_default=True, metavar="PRICE")
@click.option("--cache-write", default="0", show_default=True, metavar="PRICE")
@click.option("--currency", default="USD", show_default=True)
@click.option("--note", default="", help="Where the price comes from.")
@json_option
@with_api
def set_(api: Api, model: str, cache_read: str, cache_write: str, *, as_json: bool, **price: str) -> None:
    """Put one price of MODEL into force."""
    row = {"model": model, "cache_read_price": cache_read, "cache_write_price": cache_write, **price}
    _tell(api.call("PUT", "/prices", json={"prices": [row]}).json(), as_json=as_json)


@prices.command("reprice")
@click.option("--from", "from_", required=True, metavar="WHEN", help="Usage at or after this instant (ISO 8601).")
@click.option("--to", "to", required=True, metavar="WHEN", help="Usage before this instant (ISO 8601).")
@click.option("--model", "models", multiple=True, help="Only these models' usage.")
@json_option
@with_api
def reprice(api: Api, from_: str, to: str, models: tuple[str, ...], *, as_json: bool) -> None:
    """Have usage of a time priced at the prices of now. Every old figure is kept beside the new one."""
    body: dict[str, Any] = {"from": from_, "to": to, "models": list(models) or None}
    answer = api.post("/prices/repricings", body)
    if as_json:
        show.as_json(answer)
    else:
        click.echo(f"asked; `lockkeeper prices repricing {answer['repricing_id']}` tells how far it is")


@prices.command("repricing")
@click.argument("repricing_id")
@json_option
@with_api
def repricing(api: Api, repricing_id: str, *, as_json: bool) -> None:
    """Tell how far a repricing is and by how much the sums changed."""
    found = api.get(f"/prices/repricings/{repricing_id}")
    if as_json:
        show.as_json(found)
    else:
        show.fields(found.items())


def _tell(answer: Json, *, as_json: bool) -> None:
    if as_json:
        show.as_json(answer)
    else:
        click.echo(f"{answer['changed']} prices changed, {answer['unchanged']} were so already")
