"""Passwords that expire: a cached token, renewed well before its end by one flight at a time.

asyncpg asks for the password at every physical connect, so a pool always logs in with a token that is
still valid, and open connections are never disturbed by a renewal. The flight is a task of its own:
a caller whose deadline passes leaves it running for the others.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Token:
    """A password and how many seconds it is good for, counted from when it was asked for."""

    password: str
    life_seconds: float


class RotatingPassword:
    """The current database password; call it to get one that is valid for the next connect.

    Renewed when a third of its life is left, spread by a tenth so that replicas do not renew together.
    While the endpoint fails, the old token serves as long as it lasts; then the endpoint's error is raised.
    """

    def __init__(self, mint: Callable[[], Awaitable[Token]]) -> None:
        self._mint = mint
        self._token: Token | None = None
        self._asked_at = 0.0
        self._renew_at = 0.0
        self._expires_at = 0.0
        self._flight: asyncio.Task[None] | None = None
        self.failures = 0
        self.refusals = 0

    @property
    def seconds_left(self) -> float:
        """How long the cached token is still good for; 0 without one."""
        return max(0.0, self._expires_at - time.monotonic()) if self._token else 0.0

    @property
    def age_seconds(self) -> float:
        """Since when the cached token has been in use; 0 without one."""
        return time.monotonic() - self._asked_at if self._token else 0.0

    @property
    def seconds_to_renewal(self) -> float:
        """When the next one is asked for; 0 means now."""
        return max(0.0, self._renew_at - time.monotonic()) if self._token else 0.0

    def forget(self, refused: str | None = None) -> None:
        """Drop the cached token, or only this one: the server refused it, so the next connect asks for another."""
        if self._token is not None and refused in (None, self._token.password):
            self.refusals += refused is not None
            self._token = None

    async def renew(self) -> None:
        """Ask for a new token when it is time. Raises what the endpoint raised only when no valid one is left."""
        if self.seconds_to_renewal <= 0:
            await self._join_flight()

    async def __call__(self) -> str:
        """A password for one connect, without waiting while a valid one is there."""
        if self.seconds_left <= 0:
            await self._join_flight()
        elif self.seconds_to_renewal <= 0:
            self._start_flight()
        if self._token is None:
            raise RuntimeError("no database credential")
        return self._token.password

    async def _join_flight(self) -> None:
        await asyncio.shield(self._start_flight())

    def _start_flight(self) -> asyncio.Task[None]:
        if self._flight is None or self._flight.done():
            self._flight = asyncio.create_task(self._fly(), name="mint-credential")
            # Whoever waits hears of a failure; when nobody does any more, it is in the log.
            self._flight.add_done_callback(lambda flight: flight.cancelled() or flight.exception())
        return self._flight

    async def _fly(self) -> None:
        asked_at = time.monotonic()
        try:
            token = await self._mint()
        except Exception as error:
            self.failures += 1
            log.warning("renew_credential", error=str(error), seconds_left=round(self.seconds_left))
            if self.seconds_left <= 0:
                self._token = None
                raise
            # The old token still works: ask again soon, never in a tight loop.
            self._renew_at = time.monotonic() + min(5.0, self.seconds_left / 4)
            return
        self._token, self._asked_at = token, asked_at
        self._expires_at = asked_at + token.life_seconds
        self._renew_at = asked_at + token.life_seconds * (2 / 3 - random.random() / 10)  # noqa: S311 - jitter
