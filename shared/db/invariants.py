"""Checks what must hold at every instant, on any database and at any time."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from shared.db.statements import load

_SQL = load("shared.contract", "invariants.sql")


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, and the first rows that show it."""

    name: str
    rows: list[dict[str, object]]


async def violations(connection: asyncpg.Connection, *, limit: int = 5) -> list[Violation]:
    """Every invariant that does not hold in one snapshot of this database; none when all is well."""
    found = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for name, statement in _SQL.items():
            rows = await connection.fetch(f"SELECT * FROM ({statement.sql}\n) AS broken LIMIT {limit}")
            if rows:
                found.append(Violation(name, [dict(row) for row in rows]))
    return found
