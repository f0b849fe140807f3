"""Sends notes: after the commit, coalesced, from one connection of the process's pool.

NOTIFY inside a writing transaction makes commits queue behind each other's fsync, so writers only
hand ids to `Notes`, and one task sends what has gathered. An idle system sends at once; under load a
note waits a few milliseconds for company. A note that cannot be sent is dropped: pollers find the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson
import structlog

from shared.contract.channels import PAYLOAD_BYTES, Channel
from shared.contract.errors import TransientError
from shared.db.pool import Database

log = structlog.get_logger()

_EVERYTHING = "*"
_SEND = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS note (channel, payload)"


def encode(ids: Iterable[str]) -> list[str]:
    """Payloads of at most PAYLOAD_BYTES that name every id once; no ids gives one empty payload."""
    payloads: list[str] = []
    batch: list[str] = []
    size = 0
    for each in dict.fromkeys(ids):
        width = len(orjson.dumps(each)) + 1
        if batch and size + width > PAYLOAD_BYTES:
            payloads.append(orjson.dumps(batch).decode())
            batch, size = [], 0
        batch.append(each)
        size += width
    payloads.append(orjson.dumps(batch).decode() if batch else "")
    return payloads


def decode(payload: str) -> list[str] | None:
    """The ids that a payload names; None means look at everything (empty, foreign or broken payload)."""
    try:
        ids = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    return [str(each) for each in ids] if isinstance(ids, list) else None


class Notes:
    """The process's outgoing notes. `send` never blocks and never fails."""

    def __init__(self, database: Database, *, gather_seconds: float = 0.01) -> None:
        self._database = database
        self._gather_seconds = gather_seconds
        self._waiting: dict[Channel, dict[str, None]] = {}
        self._filled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def send(self, channel: Channel, ids: Iterable[object] = ()) -> None:
        """Note these ids on the channel soon; without ids the note says: look at everything."""
        named = self._waiting.setdefault(channel, {})
        given = [str(each) for each in ids]
        named.update(dict.fromkeys(given))
        if not given:
            named[_EVERYTHING] = None
        self._filled.set()

    async def open(self) -> None:
        """Start sending."""
        self._task = asyncio.create_task(self._run(), name="notes")

    async def close(self) -> None:
        """Send what is left, then stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Send all that has gathered, in one statement."""
        waiting, self._waiting = self._waiting, {}
        pairs = [
            (channel.value, payload)
            for channel, ids in waiting.items()
            for payload in encode(() if _EVERYTHING in ids else ids)
        ]
        if not pairs:
            return
        try:
            await self._database.execute(_SEND, [channel for channel, _ in pairs], [payload for _, payload in pairs])
        except TransientError as error:
            log.info("notes_dropped", notes=len(pairs), error=error.message)

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            await self.flush()
            # The first note leaves at once; those that come while it travels, and a little after, go together.
            await asyncio.sleep(self._gather_seconds)
