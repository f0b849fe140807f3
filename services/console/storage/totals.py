"""Totals: counting what changed into them, and reading them by time and by share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from shared.contract.task_filter import TaskFilter
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "totals.sql")

Grain = Literal["hour", "day", "ended"]
Share = Literal["agent", "customer"]


class TotalsStorage:
    """The statements of totals.sql as methods of the same names."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def take_counting(self, connection: Connection) -> datetime | None:
        """The database's time when this transaction may count; None when another console does."""
        at: datetime | None = await connection.fetchval(_SQL["take_counting"].sql)
        return at

    async def list_uncounted(self, connection: Connection, seconds: float, at_most: int) -> list[UUID]:
        """Tasks that changed within the last seconds and are not counted so."""
        return [row["id"] for row in await connection.fetch(_SQL["list_uncounted"].sql, seconds, at_most)]

    async def list_walk(self, connection: Connection, after: UUID, at_most: int) -> list[UUID]:
        """The next tasks of the walk."""
        return [row["id"] for row in await connection.fetch(_SQL["list_walk"].sql, after, at_most)]

    async def count_tasks(self, connection: Connection, ids: Sequence[UUID]) -> int:
        """How many of these tasks had counted for something else."""
        return int(await connection.fetchval(_SQL["count_tasks"].sql, list(ids)))

    async def drop_empty_cells(self, connection: Connection) -> None:
        """Forget cells that nothing counts for."""
        await connection.execute(_SQL["drop_empty_cells"].sql)

    async def read_totals_state(self, connection: Connection) -> Any:
        """How far the counting is."""
        return await connection.fetchrow(_SQL["read_totals_state"].sql)

    async def mark_counted(self, connection: Connection, at: datetime) -> None:
        """Everything committed by then is counted."""
        await connection.execute(_SQL["mark_counted"].sql, at)

    async def mark_walked(self, connection: Connection, to: UUID, *, is_end: bool) -> None:
        """The walk goes on after this task."""
        await connection.execute(_SQL["mark_walked"].sql, to, is_end)

    async def list_series(self, grain: Grain, chosen: TaskFilter, since: datetime, until: datetime) -> list[Any]:
        """Totals by hour or day, status and class."""
        return await self.database.fetch(
            _SQL["list_series"].sql, grain, list(chosen.customers) or None, since, until,
            list(chosen.agents) or None, list(chosen.statuses) or None,
        )  # fmt: skip

    async def list_shares(self, by: Share, chosen: TaskFilter, since: datetime, until: datetime) -> list[Any]:
        """Totals of whole days by agent or customer, the largest first."""
        return await self.database.fetch(
            _SQL["list_shares"].sql, by, since, until, list(chosen.customers) or None,
            list(chosen.agents) or None, list(chosen.statuses) or None,
        )  # fmt: skip
