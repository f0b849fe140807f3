"""Whether this database may act: a copy of it must not, until somebody adopts it."""

from __future__ import annotations

import asyncio
import time

import structlog

from shared.db.pool import Database
from shared.db.statements import load

log = structlog.get_logger()

_SQL = load("shared.db")
_ASK_SECONDS = 1.0


def branch_of(instance: str | None) -> str:
    """The branch of an endpoint's path, or the instance's name; empty for a database that has neither."""
    return "" if instance is None else instance.partition("/endpoints/")[0]


class Deployment:
    """This process's view of the database it works on."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self.is_known_adopted = False

    async def is_adopted(self) -> bool:
        """Whether it may act. A yes is remembered, because claims ask again in their own statement; a no is not."""
        if self.is_known_adopted:
            return True
        # Who comes while somebody asks hears the same answer: a loop that is told no rests for its whole interval.
        async with self._asking:
            if not self.is_known_adopted and time.monotonic() - self._asked_at > _ASK_SECONDS:
                self._asked_at = time.monotonic()
                self.is_known_adopted = bool(await self._database.fetchval(_SQL["read_adopted"].sql))
                if not self.is_known_adopted:
                    log.error(
                        "not_adopted", means="this database is a copy; nothing acts until `lockkeeper branch adopt`"
                    )
        return self.is_known_adopted
