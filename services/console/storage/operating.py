"""What operators do, statement by statement; the caller holds the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.contract.task_filter import TaskFilter
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "operating.sql")


@dataclass(frozen=True, slots=True)
class Eligible:
    """The tasks that a bulk action fits: a filter, statuses, ids and reasons if given, and up to when enqueued.

    Unless `also_due`, neither tasks that are due anyway nor those that were tried again.
    """

    chosen: TaskFilter
    statuses: Sequence[str]
    ids: Sequence[UUID] | None
    also_due: bool
    up_to: datetime
    reasons: Sequence[str] | None = None

    def arguments(self) -> tuple[Any, ...]:
        """The first thirteen arguments of the two statements."""
        ids = None if self.ids is None else list(self.ids)
        reasons = None if self.reasons is None else list(self.reasons)
        return (*self.chosen.arguments(), list(self.statuses), ids, self.also_due, self.up_to, reasons)


class OperatingStorage:
    """Guarded writes on tasks and the record of who did them."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def act_as(self, connection: Connection, actor: str) -> None:
        """Name the person who acts in this transaction."""
        await connection.execute(_SQL["act_as"].sql, actor)

    async def lock_tasks(self, connection: Connection, ids: Sequence[UUID]) -> None:
        """Hold these tasks."""
        await connection.execute(_SQL["lock_tasks"].sql, list(ids))

    async def read_tasks(self, connection: Connection, ids: Sequence[UUID]) -> list[Any]:
        """The locked tasks as they are now."""
        return await connection.fetch(_SQL["read_tasks"].sql, list(ids))

    async def list_open_children(self, connection: Connection, parents: Sequence[UUID]) -> list[UUID]:
        """The children of these held parents that have not ended."""
        rows = await connection.fetch(_SQL["list_open_children"].sql, list(parents))
        return [row["id"] for row in rows]

    async def cancel_tasks(self, connection: Connection, ids: Sequence[UUID]) -> list[Any]:
        """End these tasks; rows of those that it ended."""
        return await connection.fetch(_SQL["cancel_tasks"].sql, list(ids))

    async def cancel_attempts(self, connection: Connection, ids: Sequence[UUID]) -> list[Any]:
        """End these attempts; rows of those whose run must be cancelled."""
        return await connection.fetch(_SQL["cancel_attempts"].sql, list(ids))

    async def reprioritise_tasks(self, connection: Connection, ids: Sequence[UUID], priority: int) -> list[Any]:
        """Give these tasks another priority; rows of those that had a different one."""
        return await connection.fetch(_SQL["reprioritise_tasks"].sql, list(ids), priority)

    async def hasten_tasks(self, connection: Connection, ids: Sequence[UUID]) -> list[Any]:
        """Let these waiting tasks start now; rows of those that had to wait."""
        return await connection.fetch(_SQL["hasten_tasks"].sql, list(ids))

    async def redo_tasks(
        self, connection: Connection, ids: Sequence[UUID], agent: str | None, actor: str, reason: str
    ) -> list[Any]:
        """Enqueue copies of ended tasks; a row per old task with its copy."""
        return await connection.fetch(_SQL["redo_tasks"].sql, list(ids), agent, actor, reason)

    async def record_actions(
        self, connection: Connection, actor: str, action: str, entries: Sequence[dict[str, Any]]
    ) -> None:
        """Write down an action with `target`, `before` and `after` of each entry."""
        await connection.execute(_SQL["record_actions"].sql, actor, action, list(entries))

    async def count_eligible(self, eligible: Eligible) -> int:
        """How many tasks a bulk action fits."""
        return int(await self.database.fetchval(_SQL["count_eligible"].sql, *eligible.arguments()))

    async def list_eligible(
        self, eligible: Eligible, before: tuple[datetime | None, UUID | None], limit: int
    ) -> list[Any]:
        """The next of them, newest first."""
        return await self.database.fetch(_SQL["list_eligible"].sql, *eligible.arguments(), *before, limit)

    async def list_dead_letters(self, chosen: TaskFilter) -> list[Any]:
        """What failed and was not tried again, by agent and reason; of the filter only agents, customers and times."""
        agents, customers = list(chosen.agents) or None, list(chosen.customers) or None
        return await self.database.fetch(_SQL["list_dead_letters"].sql, agents, customers, chosen.from_at, chosen.to_at)

    async def read_clock(self) -> datetime:
        """The database's time."""
        now: datetime = await self.database.fetchval(_SQL["read_clock"].sql)
        return now

    async def list_audit(self, before: UUID | None, target: str | None, limit: int) -> list[Any]:
        """What operators did, newest first."""
        return await self.database.fetch(_SQL["list_audit"].sql, before, target, limit)
