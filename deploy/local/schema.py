"""Make the stack's database what this version expects: owner, schema, logins. Safe to repeat.

Run as a process of its own before the services start. On an external database only the schema and
the logins are made.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import asyncpg
import click

from deploy.local import postgres
from deploy.local.folder import StackFolder
from shared.contract.errors import LockkeeperError
from shared.contract.ownership import ROLES, role_of
from shared.db.deployment import branch_of
from shared.db.migrate import migrate

_REBIND = """
UPDATE lockkeeper.deployment SET branch = $1
 WHERE branch <> $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def prepare_database(folder: StackFolder, owner_url: str, superuser_url: str | None) -> None:
    """Bring the database up to date and let every service log in with its own password."""
    if superuser_url is not None:
        await _make_owner(superuser_url, folder.secret("owner"))
    branch = branch_of(os.environ.get("LOCKKEEPER_DATABASE_INSTANCE"))
    await migrate(owner_url, branch=branch, say=click.echo)
    connection = await asyncpg.connect(owner_url)
    try:
        # The stack's own database may be used with and without rotating credentials; a copy of it stays a copy.
        await connection.execute(_REBIND, branch)
        for service in ROLES:
            role = role_of(service)
            statement = _with_literal(f"ALTER ROLE {role} LOGIN VALID UNTIL 'infinity' PASSWORD", folder.secret(role))
            await connection.execute(statement)
    finally:
        await connection.close()


async def _make_owner(superuser_url: str, password: str) -> None:
    connection = await asyncpg.connect(superuser_url)
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", postgres.OWNER):
            await connection.execute(f"CREATE ROLE {postgres.OWNER} LOGIN CREATEROLE")
        await connection.execute(_with_literal(f"ALTER ROLE {postgres.OWNER} CREATEDB PASSWORD", password))
        # A copy of the database is made of one that nobody is logged in to.
        await connection.execute(f"GRANT pg_signal_backend TO {postgres.OWNER}")
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", postgres.DATABASE):
            await connection.execute(f"CREATE DATABASE {postgres.DATABASE} OWNER {postgres.OWNER}")
    finally:
        await connection.close()


def _with_literal(statement: str, secret: str) -> str:
    """Utility statements take no parameters; our secrets are of the URL-safe alphabet."""
    if not secret.replace("-", "").replace("_", "").isalnum():
        message = "a secret of the stack has unexpected characters"
        raise ValueError(message)
    return f"{statement} '{secret}'"


def main() -> int:
    """`python -m deploy.local.schema`, addresses from the environment the supervisor gives."""
    folder = StackFolder(Path(os.environ["LOCKKEEPER_LOCAL_FOLDER"]))
    work = prepare_database(
        folder, os.environ["LOCKKEEPER_DATABASE_URL"], os.environ.get("LOCKKEEPER_LOCAL_SUPERUSER_URL")
    )
    try:
        asyncio.run(work)
    except (LockkeeperError, asyncpg.PostgresError, OSError) as error:
        click.echo(f"schema: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
