"""Ids in time order, made by the process that needs many at once."""

from __future__ import annotations

import os
import time
from uuid import UUID


def uuid7() -> UUID:
    """A UUID of version 7 (RFC 9562): milliseconds since 1970, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    return UUID(int=value & ~(0x3 << 62) | (0x2 << 62))


def uuid7s(count: int) -> list[UUID]:
    """So many of one millisecond, in their order."""
    moment = (time.time_ns() // 1_000_000 << 80) | (0x7 << 76) | (0x2 << 62)
    noise = os.urandom(10 * count)
    parts = (int.from_bytes(noise[start : start + 10]) for start in range(0, 10 * count, 10))
    return [UUID(int=each) for each in sorted(moment | (part & ~(0xF << 76) & ~(0x3 << 62)) for part in parts)]
