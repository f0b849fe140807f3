"""What a browser that is behind has still to be sent: bounded, latest state only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.notifier.messages import Frame, join

Key = tuple[str, Any]
Tick = Mapping[Key, Frame]
"""Events by what they are of: a newer one takes the place of an older one of the same key."""


class Backlog:
    """At most one event per task, and the latest of each notice."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: dict[Key, Frame] = {}
        self._notices: dict[str, bytes] = {}
        self._snapshot = self._farewell = b""

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._events)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self._events or self._notices or self._snapshot or self._farewell)

    def add(self, tick: Tick) -> bool:
        """Keep these events; False when they are too many: then none is kept, and a snapshot is due."""
        self._events.update(tick)
        if len(self._events) > self._most:
            self._events.clear()
            return False
        return True

    def begin_with(self, snapshot: Frame) -> None:
        """Keep a snapshot; it takes the place of every older event."""
        self._events = {key: each for key, each in self._events.items() if each.number > snapshot.number}
        self._snapshot = snapshot.data

    def note(self, news: Mapping[str, bytes]) -> None:
        """Keep things of which only the latest counts."""
        self._notices.update(news)

    def end_with(self, farewell: bytes) -> None:
        """Keep what nothing comes after."""
        self._farewell = farewell

    def take(self) -> bytes:
        """All of it in order; nothing is kept then."""
        taken = self._snapshot + join(self._events.values()) + b"".join(self._notices.values()) + self._farewell
        self._events, self._notices = {}, {}
        self._snapshot = self._farewell = b""
        return taken
