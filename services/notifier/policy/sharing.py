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


class Shared(Generic[Question, Answer]):
    """One answer per question for everybody who asks within its life; who asks meanwhile waits for it.

    A dear answer lives longer: never more than a tenth of the time is spent on finding it.
    """

    def __init__(self, find: Callable[[Question], Awaitable[Answer]], *, life_seconds: float) -> None:
        self._find = find
        self._life_seconds = life_seconds
        self._found: dict[Question, tuple[float, Found[Answer]]] = {}
        self._flights: dict[Question, asyncio.Task[Found[Answer]]] = {}

    async def get(self, chosen: Question) -> Found[Answer]:
        """The answer, at most as old as its life. Raises what finding it raised."""
        valid_until, found = self._found.get(chosen, (0.0, None))
        if found is not None and time.monotonic() < valid_until:
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
        self._found = {question: each for question, each in self._found.items() if each[0] > ended}
        found = Found(started, answer)
        self._found[chosen] = (ended + max(self._life_seconds, 10 * (ended - started)), found)
        return found
