"""The system as it stands."""

from __future__ import annotations

from typing import Any

from shared.db.pool import Database
from shared.db.statements import load

_SQL = load("services.console.storage", "system.sql")

SILENT_SECONDS = 15.0
"""A replica that was not heard of for so long counts as gone; it beats every five seconds."""


class SystemStorage:
    """Reads replicas and the queue's state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_replicas(self) -> list[Any]:
        """The processes of the last hour."""
        return await self._database.fetch(_SQL["list_replicas"].sql, SILENT_SECONDS)

    async def list_queue_state(self) -> list[Any]:
        """The queue by agent."""
        return await self._database.fetch(_SQL["list_queue_state"].sql)
