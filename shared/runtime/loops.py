"""The one way background work runs: clear the wake, do a round, wait for wake, poll or stop.

A loop is an object with a `name`, a `poll_seconds` and a `run_once()` that does one round and returns
whether there may be more. When things happen is decided here: jitter, back-off on errors, the failure
budget, and the time of the last good round that liveness looks at.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from shared.contract.errors import TransientError
from shared.runtime.metrics import LOOP_LAST_SUCCESS, LOOP_ROUNDS, LOOP_SECONDS

log = structlog.get_logger()

MAX_BACKOFF_SECONDS = 15.0


class Loop(Protocol):
    """One duty."""

    name: str
    poll_seconds: float

    async def run_once(self) -> bool:
        """Do one round; True when another should follow at once."""
        ...


class BudgetSpentError(Exception):
    """A loop failed too many rounds in a row; the process ends so that its platform starts a new one."""


async def _always() -> bool:
    return True


class LoopRunner:
    """Runs one loop until it is stopped."""

    def __init__(
        self, loop: Loop, *, failure_budget: int, may_run: Callable[[], Awaitable[bool]] = _always
    ) -> None:  # fmt: skip
        self.loop = loop
        self._may_run = may_run
        self._failure_budget = failure_budget
        self._wake = asyncio.Event()
        self._stopping = False
        self._turned_at = time.monotonic()

    def wake(self) -> None:
        """Let the next round begin now."""
        self._wake.set()

    def stop(self) -> None:
        """Let the running round be the last."""
        self._stopping = True
        self._wake.set()

    @property
    def seconds_since_turn(self) -> float:
        """Time since the loop last began to wait or to work; grows when a round hangs."""
        return time.monotonic() - self._turned_at

    async def run(self) -> None:
        """Rounds until stopped. Raises BudgetSpentError after `failure_budget` failures in a row."""
        failures = 0
        while not self._stopping:
            # Clear before asking, not after: a note that lands while the round runs must cost one more
            # round, otherwise its work sleeps until the next poll.
            self._wake.clear()
            started = self._turned_at = time.monotonic()
            try:
                more = await self._may_run() and await self.loop.run_once()
            except TransientError as error:
                failures = min(failures + 1, self._failure_budget - 1)
                self._failed("transient", error.message)
                await self._pause(self._backoff(failures))
                continue
            except Exception as error:
                failures += 1
                log.exception("round_failed", loop=self.loop.name, failures=failures)
                LOOP_ROUNDS.labels(self.loop.name, "error").inc()
                if failures >= self._failure_budget:
                    raise BudgetSpentError(f"{self.loop.name} failed {failures} rounds in a row: {error}") from error
                await self._pause(self._backoff(failures))
                continue
            failures = 0
            LOOP_SECONDS.labels(self.loop.name).observe(time.monotonic() - started)
            LOOP_ROUNDS.labels(self.loop.name, "ok").inc()
            LOOP_LAST_SUCCESS.labels(self.loop.name).set_to_current_time()
            if not more:
                await self._pause(self.loop.poll_seconds * (0.75 + random.random() / 2))  # noqa: S311 - jitter
            else:
                await asyncio.sleep(0)

    def _failed(self, outcome: str, message: str) -> None:
        LOOP_ROUNDS.labels(self.loop.name, outcome).inc()
        log.warning("round_postponed", loop=self.loop.name, error=message)

    def _backoff(self, failures: int) -> float:
        return min(MAX_BACKOFF_SECONDS, 0.25 * 2.0 ** min(failures, 10)) * (0.5 + random.random() / 2)  # noqa: S311

    async def _pause(self, seconds: float) -> None:
        self._turned_at = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._turned_at = time.monotonic()
