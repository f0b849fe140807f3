"""How answers are shown: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import click

PENDING = "pending"


def as_json(value: object) -> None:
    """The answer as it came, for a program."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns; a row's missing values are shown as a dash."""
    lines = [[text(cell) for cell in row] for row in rows]
    widths = [max(len(heading), *(len(line[index]) for line in lines), 0) for index, heading in enumerate(headings)]
    for line in ([heading.upper() for heading in headings], *lines):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """One line per field that has a value."""
    shown = [(name, text(value)) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {value}")


def text(value: object) -> str:
    """One cell."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.2f}"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False, default=str)
        case str() if len(value) > 19 and value[4:5] == "-" and value[10:11] == "T":
            return _instant(value)
        case _:
            return str(value)


def error_of(row: Mapping[str, Any]) -> str | None:
    """Why a task or an attempt failed, as a sentence with its reason; None when it did not."""
    error = row.get("error")
    if not error:
        return None
    if isinstance(error, str):
        return error
    reason, message = error.get("reason"), error.get("message")
    return f"{message} ({reason})" if message and reason else str(message or reason)


def money(amount: object, currency: str | None = None) -> str:
    """A cost to a millionth, or the word that it is not known: `pending`, `unknown`."""
    if amount is None:
        return PENDING
    try:
        shown = f"{Decimal(str(amount)):.6f}"
    except InvalidOperation:
        return str(amount)
    return f"{shown} {currency}" if currency else shown


def _instant(value: str) -> str:
    try:
        return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return value
