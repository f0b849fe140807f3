"""`lockkeeper tokens`: made and revoked in the database itself, by whoever may log in as its owner."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import click

from lockkeeper import show
from lockkeeper.address import database_url, with_credential
from lockkeeper.database import url_option
from lockkeeper.failure import CommandError
from lockkeeper.options import json_option
from shared.contract.errors import LockkeeperError
from shared.db.statements import load

Row = dict[str, Any]
_SQL = load("shared.identity")
_COLUMNS = ["id", "name", "rights", "created_by", "expires_at", "revoked_at"]


@click.group()
def tokens() -> None:
    """Tokens of programs: shown once, kept as a digest, ending by themselves.

    A program sends `Authorization: Bearer TOKEN`; this command line takes it from LOCKKEEPER_TOKEN.
    """


@tokens.command()
@click.argument("name")
@click.option("--right", "rights", multiple=True, default=["read"], show_default=True,
              type=click.Choice(["read", "operate", "review", "administer"]), help="May be given again.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 365), default=90, show_default=True, help="How long it counts.")
@url_option
@json_option
def create(name: str, rights: tuple[str, ...], days: int, url: str | None, *, as_json: bool) -> None:
    """Make a token and print it; it is never shown again."""
    from shared.identity.tokens import new_token

    token_id, token, digest = new_token()
    given = sorted({"read", *rights})
    (made,) = _run(url, lambda connection: connection.fetch(
        _SQL["add_token"].sql, token_id, name, digest, given, days, person()))  # fmt: skip
    if as_json:
        show.as_json({**_shown(made), "token": token})
    else:
        click.echo(token)
        click.echo(f"{name}: {', '.join(given)} until {made['expires_at']:%Y-%m-%d}; keep it, it is not shown again",
                   err=True)  # fmt: skip


@tokens.command(name="list")
@url_option
@json_option
def list_tokens(url: str | None, *, as_json: bool) -> None:
    """Every token that was made, the newest first."""
    rows = [_shown(row) for row in _run(url, lambda connection: connection.fetch(_SQL["list_tokens"].sql))]
    if as_json:
        show.as_json({"tokens": rows})
    else:
        show.table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])


@tokens.command()
@click.argument("token_id", type=click.UUID)
@url_option
@json_option
def revoke(token_id: UUID, url: str | None, *, as_json: bool) -> None:
    """End a token; services stop believing it within ten seconds."""
    rows = _run(url, lambda connection: connection.fetch(_SQL["revoke_token"].sql, token_id, person()))
    if not rows:
        raise CommandError(f"there is no token {token_id} that still stands")
    if as_json:
        show.as_json(_shown(rows[0]))
    else:
        click.echo(f"{rows[0]['name']} is revoked")


def _run(
    url: str | None, work: Callable[[asyncpg.Connection], Awaitable[list[asyncpg.Record]]]
) -> list[asyncpg.Record]:
    from shared.db.connecting import connect
    from shared.db.pool import translated

    async def inside() -> list[asyncpg.Record]:
        async with translated():
            connection = await connect(await with_credential(database_url(url)), name="lockkeeper-tokens")
            try:
                return await work(connection)
            finally:
                await connection.close()

    try:
        return asyncio.run(inside())
    except asyncpg.InsufficientPrivilegeError as error:
        raise CommandError(f"this login may not do that: {error}") from None
    except LockkeeperError as error:
        raise CommandError(error.message) from None


def person() -> str:
    """Who runs this command, for the audit."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _shown(row: asyncpg.Record) -> Row:
    return {name: str(value) if isinstance(value, UUID) else value for name, value in row.items() if name != "digest"}
