"""Tasks as they come in and as they are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.contract.task_filter import TaskFilter
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "tasks.sql")


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task on its way into the queue."""

    agent: str
    customer: str | None
    priority: int
    max_attempts: int | None
    estimated_tokens: int | None
    available_at: datetime | None
    document_id: UUID | None
    idempotency_key: str | None
    request_digest: str
    actor: str
    labels: dict[str, Any]
    input: dict[str, Any]
    parent_task_id: UUID | None = None
    gather: str | None = None
    id: UUID | None = None
    """Where its place among others that are enqueued with it matters."""


class TaskStorage:
    """Enqueues tasks and reads them."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def read_enqueue_terms(self, connection: Connection, agent: str, document_id: UUID | None) -> Any:
        """What a new task takes from its agent and document; None without such an agent."""
        return await connection.fetchrow(_SQL["read_enqueue_terms"].sql, agent, document_id)

    async def enqueue_task(self, connection: Connection, task: NewTask) -> UUID | None:
        """The new task's id; None when its key is taken."""
        new_id: UUID | None = await connection.fetchval(
            _SQL["enqueue_task"].sql, task.agent, task.customer, task.priority, task.max_attempts,
            task.estimated_tokens, task.available_at, task.document_id, task.idempotency_key, task.request_digest,
            task.actor, task.labels, task.input, task.parent_task_id, task.gather, task.id,
        )  # fmt: skip
        return new_id

    async def hold_parent(self, connection: Connection, task_id: UUID) -> Any:
        """Status and rule of a task that cannot end before the transaction does; None without such a task."""
        return await connection.fetchrow(_SQL["hold_parent"].sql, task_id)

    async def read_keyed_task(self, connection: Connection, key: str) -> Any:
        """Id and request digest of the task that a key stands for."""
        return await connection.fetchrow(_SQL["read_keyed_task"].sql, key)

    async def list_tasks(
        self, chosen: TaskFilter, before: tuple[datetime | None, UUID | None], limit: int
    ) -> list[Any]:
        """A page of tasks, newest first."""
        return await self.database.fetch(_SQL["list_tasks"].sql, *chosen.arguments(), *before, limit)

    async def read_task(self, connection: Connection, task_id: UUID) -> Any:
        """One task as it is shown, or None."""
        return await connection.fetchrow(_SQL["read_task"].sql, task_id)

    async def read_task_content(self, connection: Connection, task_id: UUID) -> Any:
        """Input and result of a task."""
        return await connection.fetchrow(_SQL["read_task_content"].sql, task_id)

    async def list_attempts(self, connection: Connection, task_id: UUID) -> list[Any]:
        """Its attempts, first to last."""
        return await connection.fetch(_SQL["list_attempts"].sql, task_id)

    async def list_events(self, connection: Connection, task_id: UUID) -> list[Any]:
        """Its events, first to last."""
        return await connection.fetch(_SQL["list_events"].sql, task_id)

    async def explain_waiting(self, connection: Connection, task_id: UUID) -> Any:
        """Why it waits, or None."""
        return await connection.fetchrow(_SQL["explain_waiting"].sql, task_id)

    async def read_family(self, connection: Connection, task_id: UUID) -> Any:
        """What became of its children and what they cost; None when it is no parent."""
        return await connection.fetchrow(_SQL["read_family"].sql, task_id)

    async def list_children(self, parent: UUID, after: tuple[datetime | None, UUID | None], limit: int) -> list[Any]:
        """A page of a parent's children, first to last."""
        return await self.database.fetch(_SQL["list_children"].sql, parent, *after, limit)

    async def list_redone(self, connection: Connection, task_id: UUID) -> list[Any]:
        """The tasks that retry or reprocess it."""
        return await connection.fetch(_SQL["list_redone"].sql, task_id)

    async def summarise_tasks(self, chosen: TaskFilter) -> Any:
        """Totals of the tasks that a filter means."""
        return await self.database.fetchrow(_SQL["summarise_tasks"].sql, *chosen.arguments())
