"""Writes that name attempts: their tasks are locked in one statement and decided on in a later one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from shared.db.pool import Connection, Database
from shared.db.statements import Statement, load

_SQL = load("shared.db")


async def write_fenced(database: Database, statement: Statement, attempts: Sequence[UUID], *args: Any) -> list[Any]:
    """The statement's rows, in one transaction with the locks of these attempts' tasks.

    The statement's snapshot is younger than the locks, so that its fence sees what everybody before us did.
    """

    async def write(connection: Connection) -> list[Any]:
        await connection.fetch(_SQL["lock_tasks"].sql, list(attempts))
        return await connection.fetch(statement.sql, *args)

    return await database.atomically(write)
