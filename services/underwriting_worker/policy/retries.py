"""How often each kind of step is tried, and for how long: every attempt has its own limit inside the whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio.common import RetryPolicy

FENCE_ROUND = 1_000
"""Attempts of one round are numbered below this, so that a later round's attempt is always the newer one."""
LAST_WORD = 2**31 - 1
"""The fence of what the workflow itself says about a step, after every attempt of every round."""
MOST_LOST_ROUNDS = 3
LONGEST_HOLD = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Tries:
    """The attempts of one step."""

    attempts: int
    attempt_limit: timedelta
    whole_limit: timedelta
    first_pause: timedelta

    def retry_policy(self) -> RetryPolicy:
        """The same for Temporal; pauses double."""
        return RetryPolicy(initial_interval=self.first_pause, backoff_coefficient=2, maximum_attempts=self.attempts)


MODEL = Tries(4, timedelta(seconds=40), timedelta(minutes=3), timedelta(seconds=1))
TOOL = Tries(3, timedelta(seconds=15), timedelta(seconds=60), timedelta(seconds=1))
RECORD = Tries(5, timedelta(seconds=2.5), timedelta(seconds=15), timedelta(seconds=0.1))


def fence(round_number: int, attempt: int) -> int:
    """Which of two attempts is the newer, across rounds."""
    return round_number * FENCE_ROUND + min(attempt, FENCE_ROUND - 1)


def hold(rounds: int) -> timedelta:
    """How long to wait before a step is tried anew that failed through no fault of its own: 1, 2, 4 … 30 s."""
    return min(LONGEST_HOLD, timedelta(seconds=2.0 ** min(rounds - 1, 10)))
