"""Ids in time order, made by the process that needs many at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from uuid import UUID


def uuid7() -> UUID:
    """A UUID of version 7 (RFC 9562): milliseconds since 1970, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    return UUID(int=value & ~(0x3 << 62) | (0x2 << 62))


def uuid7s(count: int) -> Iterator[UUID]:
    """So many of one millisecond, in their order: one at random and those that follow it (RFC 9562, 6.2, method 2)."""
    noise = int.from_bytes(os.urandom(10))
    # The highest bit that may be random stays free, to count into.
    first = (
        (time.time_ns() // 1_000_000 << 80) | (0x7 << 76) | (noise >> 68 << 64) | (0x2 << 62) | (noise & (1 << 61) - 1)
    )
    return (UUID(int=first + number) for number in range(count))
