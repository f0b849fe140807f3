"""Events as they travel: names, ids and bytes of the stream (the EventSource format)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import orjson

Name = Literal["snapshot", "task", "gone", "summary", "cost", "agents", "state", "close"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: its number in this replica's order, and its bytes, made once for all browsers."""

    number: int
    data: bytes


def encode(event: Name, body: object, event_id: str | None = None) -> bytes:
    """The event's bytes. Only events whose loss must be noticed carry an id."""
    head = f"event: {event}\n" if event_id is None else f"event: {event}\nid: {event_id}\n"
    return head.encode() + b"data: " + orjson.dumps(body) + b"\n\n"


def retry_hint(milliseconds: int) -> bytes:
    """Tells a browser how long to wait before it comes back."""
    return f"retry: {milliseconds}\n\n".encode()
