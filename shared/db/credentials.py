"""Passwords that expire: a cached token, renewed well before its end by one flight at a time.

asyncpg asks for the password at every physical connect, so a pool always logs in with a token that is
still valid, and open connections are never disturbed by a renewal.
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
        self._renew_at = 0.0
        self._expires_at = 0.0
        self._flight = asyncio.Lock()
        self.failures = 0

    @property
    def seconds_left(self) -> float:
        """How long the cached token is still good for; 0 without one."""
        return max(0.0, self._expires_at - time.monotonic()) if self._token else 0.0

    def forget(self) -> None:
        """Drop the cached token: the server refused it, so the next connect asks for a new one."""
        self._token = None

    async def __call__(self) -> str:
        """A password for one connect. Raises what the credential endpoint raised when none is left."""
        if self._token is None or time.monotonic() >= self._renew_at:
            async with self._flight:
                if self._token is None or time.monotonic() >= self._renew_at:
                    await self._renew()
        if self._token is None:
            raise RuntimeError("no database credential")
        return self._token.password

    async def _renew(self) -> None:
        asked_at = time.monotonic()
        try:
            token = await self._mint()
        except Exception as error:
            self.failures += 1
            if self.seconds_left <= 0:
                self._token = None
                raise
            # The old token still works: ask again soon, never in a tight loop.
            self._renew_at = time.monotonic() + min(5.0, self.seconds_left / 4)
            log.warning("renew_credential", error=str(error), seconds_left=round(self.seconds_left))
            return
        self._token = token
        self._expires_at = asked_at + token.life_seconds
        self._renew_at = asked_at + token.life_seconds * (2 / 3 - random.random() / 10)  # noqa: S311 - jitter
