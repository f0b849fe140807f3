"""What the console does besides answering."""

from __future__ import annotations

import asyncio

import structlog

from shared.contract.errors import LockkeeperError
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
