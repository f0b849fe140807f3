"""The row by which a process says that it lives: who it is, since when, and how it hears.

Others read it: the sweeper frees at once what a silent dispatcher holds, and the console shows people
which replicas are alive and whether they are live or polling.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shared.db.pool import Database
from shared.db.statements import load

_SQL = load("shared.runtime")


class ReplicaHeartbeat:
    """A loop that writes this replica's row."""

    name = "heartbeat"
    poll_seconds = 5.0

    def __init__(self, database: Database, service: str, replica: str, info: Callable[[], dict[str, object]]) -> None:
        self._database = database
        self._service = service
        self._replica = replica
        self._info = info
        self._beat_at: float | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the database was reached within the last three beats."""
        return self._beat_at is not None and time.monotonic() - self._beat_at < max(10.0, self.poll_seconds * 3)

    async def run_once(self) -> bool:
        """Write the row once."""
        await self._database.execute(_SQL["beat_replica"].sql, self._replica, self._service, self._info())
        self._beat_at = time.monotonic()
        return False

    async def farewell(self) -> None:
        """Say that this replica ended on purpose."""
        await self._database.execute(_SQL["farewell_replica"].sql, self._replica)
