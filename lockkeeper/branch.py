"""`lockkeeper branch`: a copy of the database on which every service starts and nothing acts, until it is adopted.

Where LOCKKEEPER_DATABASE_INSTANCE is a Lakebase endpoint the copy is a Lakebase branch; any other Postgres is
copied as a template database, which cuts the services' sessions for the moment that it takes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg
import click

from lockkeeper import show
from lockkeeper.address import database_url, with_credential
from lockkeeper.database import url_option
from lockkeeper.failure import CommandError
from lockkeeper.options import json_option
from lockkeeper.tokens import person
from shared.contract.errors import LockkeeperError
from shared.db.connecting import connect
from shared.db.deployment import branch_of
from shared.db.pool import translated

Result = TypeVar("Result")
_PREFIX = "branch_"


@click.group()
def branch() -> None:
    """Copy the database for debugging. A copy dispatches, calls back, bills and notifies nothing until adopted."""


@branch.command()
@click.argument("name")
@click.option("--mask", is_flag=True, help="Take customers, documents, inputs and results out of the copy.")
@click.option("--days", type=click.IntRange(1, 30), default=7, show_default=True, help="Life of a Lakebase branch.")
@url_option
@json_option
def create(name: str, *, mask: bool, days: int, url: str | None, as_json: bool) -> None:
    """Make a copy under this name and say where it is."""
    _check_name(name)
    made = _run(_create(name, database_url(url), days, mask=mask))
    if as_json:
        show.as_json(made)
    else:
        show.fields(made.items())
        click.echo("It acts on nothing. To let it: lockkeeper branch adopt --url …", err=True)


@branch.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@json_option
def adopt(url: str | None, *, yes: bool, as_json: bool) -> None:
    """Let this database act: from now on its services dispatch, bill and notify what is in it."""
    address = database_url(url)
    where = urlsplit(address)
    if not yes:
        click.confirm(f"Everything that waits in {where.hostname}{where.path} will run. Adopt it?", abort=True)
    adopted = _run(_adopt(address))
    if as_json:
        show.as_json(adopted)
    else:
        click.echo(f"adopted by {adopted['adopted_by']}; its services act within seconds")


@branch.command()
@click.argument("name")
@url_option
@json_option
def delete(name: str, url: str | None, *, as_json: bool) -> None:
    """Delete a copy that `create` made."""
    _check_name(name)
    _run(_delete(name, database_url(url)))
    if as_json:
        show.as_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")


async def _create(name: str, source: str, days: int, *, mask: bool) -> dict[str, Any]:
    instance = os.environ.get("LOCKKEEPER_DATABASE_INSTANCE", "")
    if instance.startswith("projects/"):
        from shared.vendors.lakebase import create_branch

        endpoint, host = await create_branch(instance, name, days)
        parts = urlsplit(source)
        login = f"{parts.username}@" if parts.username else ""
        copy = parts._replace(netloc=f"{login}{host}:{parts.port or 5432}").geturl()
        made = {"name": name, "url": copy, "instance": endpoint}
    else:
        copy = urlsplit(source)._replace(path=f"/{_PREFIX}{name.replace('-', '_')}").geturl()
        await _copy(source, urlsplit(copy).path[1:])
        made = {"name": name, "url": copy}
    if mask:
        connection = await _open(copy, made.get("instance"))
        try:
            async with connection.transaction():
                await connection.execute(files("shared.contract").joinpath("masking.sql").read_text(encoding="utf-8"))
        finally:
            await connection.close()
    return {**made, "masked": mask}


async def _copy(source: str, copy: str) -> None:
    """Postgres copies only a database that nobody is logged in to, so logins wait for the moment."""
    original = urlsplit(source).path[1:]
    maintenance = await _open(urlsplit(source)._replace(path="/postgres").geturl())
    try:
        quoted, target = [await maintenance.fetchval("SELECT quote_ident($1)", each) for each in (original, copy)]
        await maintenance.execute(f"ALTER DATABASE {quoted} WITH ALLOW_CONNECTIONS false")
        try:
            await maintenance.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1", original
            )
            await maintenance.execute(f"CREATE DATABASE {target} TEMPLATE {quoted} STRATEGY file_copy")
        finally:
            await maintenance.execute(f"ALTER DATABASE {quoted} WITH ALLOW_CONNECTIONS true")
    finally:
        await maintenance.close()


async def _adopt(address: str) -> dict[str, Any]:
    instance = os.environ.get("LOCKKEEPER_DATABASE_INSTANCE")
    connection = await _open(address)
    try:
        async with connection.transaction():
            before = await connection.fetchrow("SELECT * FROM lockkeeper.deployment")
            await connection.execute("SELECT lockkeeper.adopt($1, $2)", branch_of(instance), person())
            after = await connection.fetchrow("SELECT * FROM lockkeeper.deployment")
            await connection.execute(
                "INSERT INTO lockkeeper.operator_audit (actor, action, target, before, after) "
                "VALUES ($1, 'adopt_branch', 'database/' || current_database(), $2, $3)",
                person(), _plain(before), _plain(after),
            )  # fmt: skip
        return _plain(after) or {}
    finally:
        await connection.close()


async def _delete(name: str, source: str) -> None:
    instance = os.environ.get("LOCKKEEPER_DATABASE_INSTANCE", "")
    if instance.startswith("projects/"):
        from shared.vendors.lakebase import delete_branch

        await delete_branch(instance, name)
        return
    maintenance = await _open(urlsplit(source)._replace(path="/postgres").geturl())
    try:
        target = await maintenance.fetchval("SELECT quote_ident($1)", f"{_PREFIX}{name.replace('-', '_')}")
        await maintenance.execute(f"DROP DATABASE {target} WITH (FORCE)")
    finally:
        await maintenance.close()


async def _open(url: str, instance: str | None = None) -> asyncpg.Connection:
    return await connect(await with_credential(url, instance), name="lockkeeper-branch", statement_seconds=None)


def _run(work: Awaitable[Result]) -> Result:
    async def inside() -> Result:
        async with translated():
            return await work

    try:
        return asyncio.run(inside())
    except asyncpg.PostgresError as error:
        raise CommandError(f"the database refused: {error}") from None
    except LockkeeperError as error:
        raise CommandError(error.message) from None


def _check_name(name: str) -> None:
    if not (name[:1].isalpha() and name.islower() and name.replace("-", "").isalnum() and len(name) <= 40):
        raise CommandError("a branch's name is lower case letters, digits and hyphens, at most 40")


def _plain(row: asyncpg.Record | None) -> dict[str, Any] | None:
    return None if row is None else {key: str(value) for key, value in row.items() if key != "only_row"}
