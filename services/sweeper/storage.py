"""The sweeper's statements as methods of the same names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from services.sweeper.policy import Judgement
from shared.contract.rows import OverdueAttempt
from shared.db.fenced import write_fenced
from shared.db.pool import Database
from shared.db.statements import load

_SQL = load("services.sweeper")
_LOOKED_AT = 1000
"""Waiting tasks of one agent that a reading looks at; more than that is said as this many."""


class SweeperStorage:
    """Reads what is overdue and writes what became of it, each write fenced by the attempt's id."""

    def __init__(self, database: Database, replica: str) -> None:
        self._database = database
        self._replica = replica

    async def list_overdue(self, limit: int) -> list[OverdueAttempt]:
        """Attempts whose run is known and whose lease is over."""
        return [OverdueAttempt(**row) for row in await self._database.fetch(_SQL["list_overdue"].sql, limit)]

    async def extend_leases(self, extended: Sequence[tuple[UUID, float]]) -> int:
        """Let attempts keep their tasks for so many seconds; returns how many still had them."""
        attempts = [attempt for attempt, _ in extended]
        return len(await self._fenced("extend_leases", attempts, attempts, [seconds for _, seconds in extended]))

    async def record_recovered(self, attempts: Sequence[UUID]) -> None:
        """Hand found results to the receiver."""
        await self._database.execute(_SQL["record_recovered"].sql, list(attempts))

    async def lose_attempts(self, lost: Sequence[tuple[UUID, Judgement]]) -> list[Any]:
        """Requeue or give up the tasks of lost attempts; rows of what moved."""
        attempts = [attempt for attempt, _ in lost]
        judgements = [judgement for _, judgement in lost]
        return await self._fenced(
            "lose_attempts",
            attempts,
            attempts,
            [each.finding.value for each in judgements],
            [each.reason for each in judgements],
            [each.message for each in judgements],
        )

    async def take_duty(self, duty: str, seconds: float) -> bool:
        """Whether the duty is this replica's for the next seconds."""
        return await self._database.fetchval(_SQL["take_duty"].sql, duty, self._replica, seconds) is not None

    async def forget_spending(self, limit: int) -> int:
        """Remove token spending that weighs on nothing any more; returns how much of it."""
        return int(await self._database.fetchval(_SQL["forget_spending"].sql, limit))

    async def remove_tasks(self, days: int, after: tuple[datetime, UUID]) -> Any:
        """Remove what ended so long ago among the next thousand; how many they were, the last one, rows by table."""
        return await self._database.fetchrow(_SQL["remove_tasks"].sql, days, *after)

    async def drop_duties(self) -> None:
        """Let the others take over at once."""
        await self._database.execute(_SQL["drop_duties"].sql, self._replica)

    async def read_queue_state(self) -> list[Any]:
        """One row per agent for the table-derived metrics."""
        return await self._database.fetch(_SQL["read_queue_state"].sql, _LOOKED_AT)

    async def read_duty_state(self) -> Any:
        """What leases, results and costs are owed."""
        return await self._database.fetchrow(_SQL["read_duty_state"].sql)

    async def read_replicas(self, seconds: float) -> list[Any]:
        """Counts of the processes that beat within the last seconds, by service and by how they hear."""
        return await self._database.fetch(_SQL["read_replicas"].sql, seconds)

    async def read_database_state(self) -> Any:
        """How far the database is from its own limits."""
        return await self._database.fetchrow(_SQL["read_database_state"].sql)

    async def read_table_state(self) -> list[Any]:
        """Live and dead rows per table."""
        return await self._database.fetch(_SQL["read_table_state"].sql)

    async def _fenced(self, name: str, attempts: Sequence[UUID], *args: Any) -> list[Any]:
        return await write_fenced(self._database, _SQL[name], attempts, *args)
