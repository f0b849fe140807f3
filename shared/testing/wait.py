"""Waiting for a fact instead of for time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

Fact = TypeVar("Fact")


async def until(condition: Callable[[], Fact | Awaitable[Fact]], *, seconds: float = 10, every: float = 0.02) -> Fact:
    """What `condition` returns once it is true. AssertionError when it is not within the time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        answer = condition()
        fact = await answer if inspect.isawaitable(answer) else answer
        if fact:
            return fact
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not true within {seconds} s; last answer: {fact!r}")
        await asyncio.sleep(every)
