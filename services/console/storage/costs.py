"""What was spent, and the asking for the bill."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from shared.contract.task_filter import TaskFilter
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "costs.sql")


class CostStorage:
    """Reads costs and asks the cost attributor for more."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def sum_costs(self, group_by: str, zone: str, chosen: TaskFilter) -> list[Any]:
        """Costs by agent, customer, status, day or month (of that zone)."""
        return await self.database.fetch(_SQL["sum_costs"].sql, group_by, zone, *chosen.arguments())

    async def list_task_costs(
        self, chosen: TaskFilter, before: tuple[datetime | None, UUID | None], limit: int
    ) -> list[Any]:
        """A page of tasks with their costs."""
        return await self.database.fetch(_SQL["list_task_costs"].sql, *chosen.arguments(), *before, limit)

    async def request_costs(self, actor: str, from_at: datetime, to_at: datetime) -> tuple[UUID, bool]:
        """The request for this range and whether it is new; one that is open already is reused."""

        async def ask(connection: Connection) -> tuple[UUID, bool]:
            await connection.execute(_SQL["lock_requests"].sql)
            standing: UUID | None = await connection.fetchval(_SQL["read_open_request"].sql, from_at, to_at)
            if standing is not None:
                return standing, False
            made: UUID = await connection.fetchval(_SQL["request_costs"].sql, actor, from_at, to_at)
            return made, True

        return await self.database.atomically(ask)

    async def read_request(self, request_id: UUID) -> Any:
        """How far a request is, or None."""
        return await self.database.fetchrow(_SQL["read_request"].sql, request_id)
