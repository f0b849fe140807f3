"""The browsers that look: what each of them still has to be sent, bounded, latest state only.

A tick hands its events over once per filter, not once per browser. A browser that keeps up gets the tick's
bytes as they are; for one that is behind, a newer event of a task takes the place of the older one, so
its backlog is at most one event per task. One that is further behind than `pending_events` gets a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from services.notifier.messages import Frame
from services.notifier.metrics import CLIENTS, OVERFLOWS
from shared.contract.task_filter import TaskFilter

Key = tuple[str, Any]
Tick = Mapping[Key, Frame]


class Browser:
    """One open stream."""

    def __init__(self, chosen: TaskFilter, *, most_pending: int) -> None:
        self.filter = chosen
        self.needs_snapshot = True
        self._most_pending = most_pending
        self._wake = asyncio.Event()
        self._pending: dict[Key, Frame] = {}
        self._ready: bytes = b""
        self._notices: dict[str, bytes] = {}
        self._is_closed = False

    @property
    def pending(self) -> int:
        """How many events wait for it, besides those that are ready to go."""
        return len(self._pending)

    def offer(self, tick: Tick, joined: bytes) -> None:
        """Hand over a tick's events, and the same as bytes."""
        if self._is_idle():
            # Kept as frames too: if it is not taken before the next tick, they merge.
            self._ready = joined
            self._pending = dict(tick)
        else:
            self._ready = b""
            self._pending.update(tick)
        if len(self._pending) > self._most_pending:
            OVERFLOWS.inc()
            self._ready = b""
            self._pending.clear()
            self.needs_snapshot = True
        self._wake.set()

    def replay(self, frames: Tick) -> None:
        """Let it go on where it was, without a snapshot."""
        self.needs_snapshot = False
        self._pending.update(frames)
        self._wake.set()

    def snapshot(self, frame: Frame) -> None:
        """Hand over a snapshot; it takes the place of every event that it holds already."""
        self.needs_snapshot = False
        self._ready = b""
        self._pending = {key: each for key, each in self._pending.items() if each.number > frame.number}
        self._notices = {"snapshot": frame.data, **self._notices}
        self._wake.set()

    def notice(self, name: str, data: bytes) -> None:
        """Hand over something of which only the latest counts."""
        self._notices.pop(name, None)
        self._notices[name] = data
        self._wake.set()

    def close(self) -> None:
        """End the stream after what is handed over."""
        self._is_closed = True
        self._wake.set()

    async def take(self) -> bytes | None:
        """All that waits for it, at least one event; None when the stream ends."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if data := self._drain():
                if self._is_closed:
                    self._wake.set()
                return data
            if self._is_closed:
                return None

    def _is_idle(self) -> bool:
        return not self._pending and not self._ready

    def _drain(self) -> bytes:
        notices, self._notices = self._notices, {}
        pending, self._pending = self._pending, {}
        ready, self._ready = self._ready, b""
        snapshot = notices.pop("snapshot", b"")
        events = ready or b"".join(each.data for each in sorted(pending.values(), key=lambda frame: frame.number))
        return snapshot + events + b"".join(notices.values())


class Browsers:
    """All of them, by filter."""

    def __init__(self, *, most: int, most_pending: int) -> None:
        self._most = most
        self._most_pending = most_pending
        self._by_filter: dict[TaskFilter, set[Browser]] = {}
        self._count = 0
        self._are_closed = False

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Browser]:
        return (browser for group in self._by_filter.values() for browser in group)

    @property
    def is_full(self) -> bool:
        """Whether one more would be too many, or none may come any more."""
        return self._count >= self._most or self._are_closed

    def open(self, chosen: TaskFilter) -> Browser:
        """A new stream."""
        browser = Browser(chosen, most_pending=self._most_pending)
        self._by_filter.setdefault(chosen, set()).add(browser)
        self._count += 1
        CLIENTS.set(self._count)
        return browser

    def leave(self, browser: Browser) -> None:
        """The stream is over; may be told twice."""
        group = self._by_filter.get(browser.filter, set())
        if browser in group:
            group.remove(browser)
            self._count -= 1
            CLIENTS.set(self._count)
        if not group:
            self._by_filter.pop(browser.filter, None)

    def groups(self) -> list[tuple[TaskFilter, list[Browser]]]:
        """The filters in use with their browsers, as they are now."""
        return [(chosen, list(group)) for chosen, group in self._by_filter.items()]

    def close(self, farewell: bytes) -> None:
        """End every stream with these last bytes."""
        self._are_closed = True
        for browser in self:
            browser.notice("close", farewell)
            browser.close()
