"""Hears notes on a connection of its own, and proves that it still does.

The connection stands outside every pool (a release would drop the subscriptions). Each few seconds the
listener sends itself a note and waits for it: a half-open socket raises no error, so only a round trip
shows that notes still arrive. After every connect it subscribes first and then reports `everything`
on each channel, so that what was missed in between is looked at.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping

import structlog

from shared.contract.channels import Channel
from shared.contract.errors import MisconfiguredError
from shared.db.connecting import CONNECTION_SECONDS, Connection, Login, Password, Session
from shared.db.notes import decode
from shared.db.pool import translate

log = structlog.get_logger()

Handler = Callable[[list[str] | None], None]
"""Takes the ids of a note; None means look at everything. It must not block."""

PROBE_SECONDS = 6.0
PROBE_TIMEOUT_SECONDS = 5.0


class Listener:
    """One LISTEN connection with a handler per channel; reconnects with fresh credentials for ever."""

    def __init__(
        self, url: str, password: Password | None, handlers: Mapping[Channel, Handler], *, name: str,
        life_seconds: float = CONNECTION_SECONDS,
    ) -> None:  # fmt: skip
        self._login = Login(url, password, name=name, life_seconds=life_seconds)
        self._handlers = dict(handlers)
        self._probe_channel = f"lockkeeper_probe_{os.getpid()}_{random.randrange(1 << 32):x}"  # noqa: S311 - a name
        self._proved = asyncio.Event()
        self._lost = asyncio.Event()
        self._proved_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self.connects = 0

    @property
    def is_live(self) -> bool:
        """Whether notes were proved to arrive within the last two probes."""
        return self.seconds_since_proof < PROBE_SECONDS + PROBE_TIMEOUT_SECONDS

    @property
    def seconds_since_proof(self) -> float:
        """Age of the last round trip; infinite before the first and while the connection is down."""
        return float("inf") if self._proved_at is None else time.monotonic() - self._proved_at

    async def open(self) -> None:
        """Start listening in the background."""
        self._task = asyncio.create_task(self._run(), name="listener")

    async def close(self) -> None:
        """Stop listening and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        delay = 0.2
        while True:
            started = time.monotonic()
            try:
                await self._listen()
            except Exception as error:
                # Whatever ends one connection, the answer is the next one; a fault of ours shows in the log.
                if not isinstance(translate(error), Exception) or isinstance(translate(error), MisconfiguredError):
                    log.exception("listener_failed")
                else:
                    log.warning("listener_lost", error=str(error) or type(error).__name__)
            finally:
                self._proved_at = None
            delay = 0.2 if time.monotonic() - started > 30 else min(delay * 2, 5.0)
            await asyncio.sleep(delay * (0.5 + random.random() / 2))  # noqa: S311 - jitter

    async def _listen(self) -> None:
        session = await self._subscribe()
        try:
            while True:
                try:
                    await asyncio.wait_for(self._lost.wait(), PROBE_SECONDS)
                except TimeoutError:
                    if session.is_stale:
                        # The next one listens before this one ends, so that nobody falls back to polling meanwhile.
                        old, session = session, await self._subscribe()
                        old.terminate()
                    await self._prove(session)
                else:
                    raise ConnectionError("the server closed the listening connection")
        finally:
            session.terminate()

    async def _subscribe(self) -> Session:
        """A session that hears every channel, proved to; whoever listens is told to look at everything."""
        session = await self._login.open()
        lost = asyncio.Event()
        try:
            session.add_termination_listener(lambda _: lost.set())
            await session.add_listener(self._probe_channel, self._on_probe)
            for channel in self._handlers:
                await session.add_listener(channel.value, self._on_note)
            await self._prove(session)
        except BaseException:
            session.terminate()
            raise
        self._lost = lost
        self.connects += 1
        for channel in self._handlers:
            self._handle(channel, None)
        return session

    async def _prove(self, session: Session) -> None:
        self._proved.clear()
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            await session.execute("SELECT pg_notify($1, '')", self._probe_channel)
            await self._proved.wait()
        self._proved_at = time.monotonic()

    def _on_probe(self, *_: object) -> None:
        self._proved.set()

    def _on_note(self, _connection: Connection, _pid: int, channel: str, payload: object) -> None:
        self._handle(Channel(channel), decode(str(payload)))

    def _handle(self, channel: Channel, ids: list[str] | None) -> None:
        try:
            self._handlers[channel](ids)
        except Exception:
            # A handler's fault must not end the loop that everything else hears by.
            log.exception("note_handler_failed", channel=channel.value)
