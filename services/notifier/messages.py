"""Events as they travel: names, ids and bytes of the stream (the EventSource format), each a chunk of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from shared.contract.task_filter import TaskFilter
from shared.runtime.http.wire import chunk

Name = Literal["snapshot", "task", "gone", "summary", "cost", "agents", "state", "close"]

STILL_HERE = chunk(b": still here\n\n")


@dataclass(frozen=True, slots=True)
class View:
    """What a page looks at. Hashable, so that equal views share their answers."""

    filter: TaskFilter
    has_totals: bool = True
    """Whether it shows totals and agents too; the page of one task does not."""

    @classmethod
    def parse(cls, pairs: Sequence[tuple[str, str]]) -> View:
        """The view that these query parameters mean. Raises RejectedError that names the parameter."""
        return cls(TaskFilter.parse(pairs), ("only", "tasks") not in pairs)


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: its number in this replica's order, and its bytes, made once for all browsers."""

    number: int
    data: bytes


def encode(event: Name, body: object, event_id: str | None = None) -> bytes:
    """The event's bytes. Only events whose loss must be noticed carry an id."""
    head = f"event: {event}\n" if event_id is None else f"event: {event}\nid: {event_id}\n"
    return chunk(head.encode() + b"data: " + orjson.dumps(body) + b"\n\n")


def join(frames: Iterable[Frame]) -> bytes:
    """Their bytes in the order of their numbers: a browser goes on after the last id that it had."""
    return b"".join(frame.data for frame in sorted(frames, key=lambda frame: frame.number))


def retry_hint(milliseconds: int) -> bytes:
    """Tells a browser how long to wait before it comes back."""
    return chunk(f"retry: {milliseconds}\n\n".encode())
