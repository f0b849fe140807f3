"""Answers that many share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Found(Generic[Answer]):
    """An answer and when the search for it began (monotonic seconds): what happened since may be missing in it."""

    since: float
    answer: Answer


_REST = 4.0


class Shared(Generic[Question, Answer]):
    """One answer per question for everybody who asks within its life; who asks meanwhile waits for it.

    After a search there is a rest of four times its length, so that dear answers are not sought all the time.
    """

    def __init__(self, find: Callable[[Question], Awaitable[Answer]], *, life_seconds: float) -> None:
        self._find = find
        self._life_seconds = life_seconds
        self._found: dict[Question, tuple[float, Found[Answer]]] = {}
        self._flights: dict[Question, asyncio.Task[Found[Answer]]] = {}

    async def get(self, chosen: Question, *, after: float = 0.0) -> Found[Answer]:
        """The answer, at most as old as its life, and sought after this instant if no rest forbids it (monotonic).

        Raises what finding it raised.
        """
        rests_until, found = self._found.get(chosen, (0.0, None))
        now = time.monotonic()
        if found is not None:
            is_good = after <= found.since and now < found.since + self._life_seconds
            if is_good or now < rests_until:
                return found
        flight = self._flights.get(chosen)
        if flight is None:
            flight = self._flights[chosen] = asyncio.create_task(self._fly(chosen))
        # Whoever gives up must not end the flight for the others.
        return await asyncio.shield(flight)

    def forget(self) -> None:
        """Let every answer be found anew."""
        self._found.clear()

    async def _fly(self, chosen: Question) -> Found[Answer]:
        started = time.monotonic()
        try:
            answer = await self._find(chosen)
        finally:
            del self._flights[chosen]
        ended = time.monotonic()
        self._found = {
            question: (rests_until, each)
            for question, (rests_until, each) in self._found.items()
            if max(rests_until, each.since + self._life_seconds) > ended
        }
        found = Found(started, answer)
        self._found[chosen] = (ended + _REST * (ended - started), found)
        return found
