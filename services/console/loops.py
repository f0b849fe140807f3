"""What the console does besides answering."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from uuid import UUID

import structlog

from services.console.metrics import TASKS_COUNTED
from services.console.storage.totals import TotalsStorage
from shared.contract.errors import LockkeeperError
from shared.db.pool import Connection
from shared.vendors.workspace import Workspace

log = structlog.get_logger()

_FIRST_ANSWERS_SECONDS = 3.0
"""For getting ready and showing the first page, which the import would slow down."""


class WarmUp:
    """A loop with one round: gets the workspace's SDK ready in a thread, so that the first upload need not wait for it.

    Importing the SDK takes seconds of processor time; the console answers from its first moment without it.
    """

    name = "warm_up"
    poll_seconds = 3600.0

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._task: asyncio.Task[None] | None = None

    async def run_once(self) -> bool:
        """Begin once; the end of the process does not wait for it."""
        if self._task is None:
            self._task = asyncio.create_task(self._connect(), name="warm-up")
        return False

    async def _connect(self) -> None:
        await asyncio.sleep(_FIRST_ANSWERS_SECONDS)
        try:
            await self._workspace.call(lambda client: client.config.host)
        except LockkeeperError as error:
            log.info("warm_up_failed", reason=error.reason, error=error.message)


_BATCH = 5000
_FARTHEST_SECONDS = 86_400.0
"""What was not counted for longer is left to the walk."""
_START = UUID(int=0)


class Count:
    """A loop: keeps the totals of what changed.

    It looks at the last seconds, now and then further back for what committed late, and walks through all tasks
    for whatever both have missed.
    """

    name = "count"
    poll_seconds = 1.0

    def __init__(
        self, storage: TotalsStorage, *, overlap_seconds: float = 10, late_seconds: float = 300,
        late_every_seconds: float = 60, walk_every_seconds: float = 5,
    ) -> None:  # fmt: skip
        self._storage = storage
        self._overlap_seconds = overlap_seconds
        self._late_seconds = late_seconds
        self._late_every_seconds = late_every_seconds
        self._walk_every_seconds = walk_every_seconds
        self._looked_at: float | None = None
        self._late_at = 0.0
        self._walked_at = 0.0

    async def run_once(self) -> bool:
        """Count one batch of what changed, and one of the walk when it is due."""
        async with self._storage.database.transaction() as connection:
            at = await self._storage.take_counting(connection)
            if at is None:
                self._looked_at = None
                return False
            has_more = await self._count_changed(connection, at)
            if has_more or time.monotonic() - self._walked_at >= self._walk_every_seconds:
                has_more |= await self._walk(connection)
        return has_more

    async def _count_changed(self, connection: Connection, at: datetime) -> bool:
        now = time.monotonic()
        is_late_due = self._looked_at is None or now - self._late_at >= self._late_every_seconds
        if self._looked_at is None:
            state = await self._storage.read_totals_state(connection)
            silence = (at - state["counted_at"]).total_seconds()
        else:
            silence = now - self._looked_at
        since = min(max(silence, 0.0), _FARTHEST_SECONDS) + (
            self._late_seconds if is_late_due else self._overlap_seconds
        )
        ids = await self._storage.list_uncounted(connection, since, _BATCH)
        if ids:
            TASKS_COUNTED.inc(await self._storage.count_tasks(connection, ids))
        if len(ids) == _BATCH:
            return True
        await self._storage.mark_counted(connection, at)
        self._looked_at = now
        if is_late_due:
            self._late_at = now
        return False

    async def _walk(self, connection: Connection) -> bool:
        state = await self._storage.read_totals_state(connection)
        ids = await self._storage.list_walk(connection, state["walked_to"], _BATCH)
        changed = await self._storage.count_tasks(connection, ids) if ids else 0
        TASKS_COUNTED.inc(changed)
        is_end = len(ids) < _BATCH
        await self._storage.mark_walked(connection, _START if is_end else ids[-1], is_end=is_end)
        if is_end:
            await self._storage.drop_empty_cells(connection)
        self._walked_at = time.monotonic()
        # Where the walk finds something, more of it is near: a database that is new to the totals.
        return changed > 0 and not is_end
