"""The notifier's statements as methods of the same names, and what browsers are shown of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from services.notifier.messages import View
from services.notifier.metrics import READ_SECONDS
from services.notifier.policy.sharing import Shared
from shared.contract.shown import shown_agent_state, shown_summary, shown_task
from shared.contract.task_filter import TaskFilter
from shared.db.pool import Database
from shared.db.statements import load

_SQL = load("services.notifier")

_LIMITS = ("name", "paused", "max_concurrent_tasks", "max_tpm")


class NotifierStorage:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_tasks(self, ids: Sequence[UUID]) -> list[Any]:
        """These tasks as they are now."""
        return await self._timed("read_tasks", list(ids))

    async def list_tasks(self, chosen: TaskFilter, limit: int) -> list[Any]:
        """The first page of a filter."""
        if chosen.task_id is not None:
            # The page of one task; looking for its id as a text would read every task there is.
            return [row for row in await self.read_tasks([chosen.task_id]) if chosen.matches(row)]
        return await self._timed("list_tasks", *chosen.arguments(), limit)

    async def summarise_tasks(self, chosen: TaskFilter) -> Any:
        """The totals of a filter."""
        return (await self._timed("summarise_tasks", *chosen.arguments()))[0]

    async def list_queue_state(self) -> list[Any]:
        """The use of every agent's limits."""
        return await self._timed("list_queue_state")

    async def list_recently_changed(self, seconds: float) -> list[Any]:
        """Ids and versions of what changed within the last seconds; without a version for what merely runs."""
        return await self._timed("list_recently_changed", seconds)

    async def _timed(self, name: str, *args: Any) -> list[Any]:
        started = time.perf_counter()
        try:
            return await self._database.fetch(_SQL[name].sql, *args)
        finally:
            READ_SECONDS.labels(name).observe(time.perf_counter() - started)


class Views:
    """What browsers are shown, as JSON; totals and agents are shared by snapshots and by who keeps them fresh."""

    def __init__(self, storage: NotifierStorage, *, snapshot_tasks: int, life_seconds: float) -> None:
        self._storage = storage
        self._snapshot_tasks = snapshot_tasks
        self.summary: Shared[TaskFilter, dict[str, Any]] = Shared(self._summary, life_seconds=life_seconds)
        self.agents: Shared[None, list[dict[str, Any]]] = Shared(self._agents, life_seconds=life_seconds)

    async def snapshot(self, view: View) -> dict[str, Any]:
        """The first page of a filter and, for whoever shows them, its totals and the agents."""
        rows = await self._storage.list_tasks(view.filter, self._snapshot_tasks)
        shown = {
            "tasks": [shown_task(row, row["waiting_reason"]) for row in rows],
            "is_whole": len(rows) < self._snapshot_tasks,
        }
        if view.has_totals:
            shown["summary"] = (await self.summary.get(view.filter)).answer
            shown["agents"] = (await self.agents.get(None)).answer
        return shown

    async def _summary(self, chosen: TaskFilter) -> dict[str, Any]:
        return shown_summary(await self._storage.summarise_tasks(chosen))

    async def _agents(self, _: None) -> list[dict[str, Any]]:
        return [
            {**{name: row[name] for name in _LIMITS}, "state": shown_agent_state(row)}
            for row in await self._storage.list_queue_state()
        ]
