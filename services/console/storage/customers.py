"""Customers: their budgets over all agents."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "customers.sql")


class CustomerStorage:
    """Reads customers' budgets and writes their next versions."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def list_customers(self, name: str | None = None) -> list[Any]:
        """All customers, or one, with what their budgets have left."""
        return await self.database.fetch(_SQL["list_customers"].sql, name)

    async def lock_customer(self, connection: Connection, name: str) -> Any:
        """Hold the customer's row; its budgets as they are now, or None."""
        return await connection.fetchrow(_SQL["lock_customer"].sql, name)

    async def write_customer(
        self, connection: Connection, name: str, budgets: tuple[Decimal | None, Decimal | None], actor: str,
        version: int,
    ) -> int | None:  # fmt: skip
        """The next version (daily and monthly budget); None when the one before is not `version`."""
        written: int | None = await connection.fetchval(_SQL["write_customer"].sql, name, *budgets, actor, version)
        return written
