"""Brings a database to this version's schema: forward only, expand before contract, safe beside running code.

Each file runs in one transaction under a short `lock_timeout`, so that a waiting migration never
queues the whole system behind itself; it gives up and tries again. A file whose first line is
`-- transaction: off` runs statement by statement (CREATE INDEX CONCURRENTLY).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import asyncpg

from shared.contract.errors import LockkeeperError, MisconfiguredError, TransientError
from shared.contract.ownership import CUSTOMER_READER_ROLE, OWNER_ROLE, READER_ROLE, ROLES, grant_statements, role_of
from shared.db.connecting import connect
from shared.db.deployment import branch_of
from shared.db.pool import translated

_FILE = re.compile(r"^(?P<number>\d{4})_[a-z0-9_]+\.(pre|post)\.sql$")
_ADVISORY_KEY = 4951_0000
_LOCK_TIMEOUT = "3s"
_LOCK_TRIES = 20
_OUTSIDE = "-- transaction: off"


@dataclass(frozen=True, slots=True)
class Migration:
    """One schema file: its number, name, text and digest."""

    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, so that an applied file that changed later is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """All schema files of this version, in order."""
    found = [
        Migration(int(match["number"]), entry.name, entry.read_text(encoding="utf-8"))
        for entry in files("shared.contract").joinpath("schema").iterdir()
        if (match := _FILE.match(entry.name))
    ]
    return sorted(found, key=lambda each: each.number)


async def migrate(url: str, *, branch: str = "", say: Callable[[str], None] = lambda _: None) -> int:
    """Apply what is missing and set the grants; returns how many files were applied.

    `branch` is the Lakebase branch that services will name. Raises TransientError when a lock could not be had or
    the connection was lost, MisconfiguredError when an applied file changed or the login may not create roles. Any
    number of processes may call it at once: one works, the rest wait.
    """
    async with translated():
        # An index over many rows takes minutes, and so may the migration that we wait for.
        connection = await connect(url, name="lockkeeper-migrate", statement_seconds=None)
        try:
            await connection.execute("SELECT pg_advisory_lock($1)", _ADVISORY_KEY)
            await _ensure_roles(connection)
            count = await _apply_all(connection, say)
            await _adopt_first(connection, branch)
        except asyncpg.InsufficientPrivilegeError as error:
            raise MisconfiguredError(f"this login may not migrate the database: {error}") from error
        finally:
            await connection.close()
    return count


async def _adopt_first(connection: asyncpg.Connection, branch: str) -> None:
    """A database that was never adopted is no copy of one that was: it is the first of its kind."""
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM lockkeeper.deployment)"):
        await connection.execute("SELECT lockkeeper.adopt($1, session_user)", branch)


async def applied(connection: asyncpg.Connection) -> dict[int, str]:
    """Digests of the applied files by number; empty on a new database."""
    if await connection.fetchval("SELECT to_regclass('lockkeeper.migrations')") is None:
        return {}
    return {
        row["number"]: row["digest"]
        for row in await connection.fetch("SELECT number, digest FROM lockkeeper.migrations")
    }


async def _ensure_roles(connection: asyncpg.Connection) -> None:
    existing = {row["rolname"] for row in await connection.fetch("SELECT rolname FROM pg_roles")}
    for role in [OWNER_ROLE, READER_ROLE, CUSTOMER_READER_ROLE, *(role_of(service) for service in ROLES)]:
        if role not in existing:
            await connection.execute(f"CREATE ROLE {role} NOLOGIN")
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    # Since 16 the creator of a role needs the membership by name before it may act as the role.
    await connection.execute(f"GRANT {OWNER_ROLE} TO CURRENT_USER")
    await connection.execute(f"GRANT CREATE ON DATABASE {database} TO {OWNER_ROLE}")


async def _apply_all(connection: asyncpg.Connection, say: Callable[[str], None]) -> int:
    done = await applied(connection)
    count = 0
    for migration in migrations():
        if migration.number in done:
            if done[migration.number] != migration.digest:
                raise MisconfiguredError(f"{migration.name} was changed after it was applied to this database")
            continue
        say(f"applying {migration.name}")
        await _with_lock_retries(connection, migration)
        count += 1
    async with connection.transaction():
        await connection.execute(f"SET LOCAL ROLE {OWNER_ROLE}")
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        for statement in grant_statements():
            await connection.execute(statement)
    return count


async def _with_lock_retries(connection: asyncpg.Connection, migration: Migration) -> None:
    for _ in range(_LOCK_TRIES):
        try:
            await _apply(connection, migration)
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(1)
        else:
            return
    raise TransientError(f"{migration.name} could not get its locks; end long transactions and run it again")


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    if migration.sql.startswith(_OUTSIDE):
        await _run_outside(connection, migration.sql)
    async with connection.transaction():
        await connection.execute(f"SET LOCAL ROLE {OWNER_ROLE}")
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        if not migration.sql.startswith(_OUTSIDE):
            await connection.execute(migration.sql)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS lockkeeper.migrations "
            "(number integer PRIMARY KEY, name text NOT NULL, digest text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT now())"
        )
        await connection.execute(
            "INSERT INTO lockkeeper.migrations (number, name, digest) VALUES ($1, $2, $3)",
            migration.number, migration.name, migration.digest,
        )  # fmt: skip


async def _run_outside(connection: asyncpg.Connection, sql: str) -> None:
    """Run statement by statement; each ends its line with a semicolon and bears being run again.

    No lock timeout: building an index concurrently waits for old readers, and nobody waits behind it.
    """
    await connection.execute(f"SET ROLE {OWNER_ROLE}")
    try:
        for statement in re.split(r";\s*$", sql, flags=re.MULTILINE):
            if re.sub(r"--.*", "", statement).strip():
                await connection.execute(statement)
    finally:
        await connection.execute("RESET ROLE")


def main(argv: list[str] | None = None) -> int:
    """`python -m shared.db.migrate [--url URL]`; the URL defaults to LOCKKEEPER_DATABASE_URL."""
    parser = argparse.ArgumentParser(prog="python -m shared.db.migrate", description="Bring the database up to date.")
    parser.add_argument("--url", default=os.environ.get("LOCKKEEPER_DATABASE_URL"), help="database to migrate")
    url = parser.parse_args(argv).url
    branch = branch_of(os.environ.get("LOCKKEEPER_DATABASE_INSTANCE"))
    if not url:
        print("migrate: set LOCKKEEPER_DATABASE_URL or give --url", file=sys.stderr)  # noqa: T201
        return 2
    try:
        count = asyncio.run(migrate(url, branch=branch, say=lambda line: print(f"migrate: {line}", flush=True)))  # noqa: T201
    except LockkeeperError as error:
        print(f"migrate: {error.message}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"migrate: {count} applied, schema is current" if count else "migrate: schema is current")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
