"""The browsers that look.

A tick hands its events over once per view, not once per browser. A browser that keeps up is written the tick's
bytes as they are, without a task of its own. One that is behind has a task and a backlog until it has caught up;
further behind than `pending_events`, it gets a snapshot instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from services.notifier.gateways.backlog import Backlog, Tick
from services.notifier.messages import Frame, View, join
from services.notifier.metrics import CLIENTS, OVERFLOWS
from shared.runtime.http.wire import Wire


class Browser:
    """One open stream."""

    def __init__(self, view: View, wire: Wire, *, most_pending: int, send_seconds: float) -> None:
        self.view = view
        self.needs_snapshot = True
        self.backlog = Backlog(most_pending)
        self._wire = wire
        self._send_seconds = send_seconds
        self._is_closed = False
        self._catching_up: asyncio.Task[None] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether what is for it waits until it has taken more."""
        return self._catching_up is not None

    def offer(self, tick: Tick, joined: bytes) -> None:
        """Hand over a tick's events, and the same as bytes."""
        if not (self._writes(joined) or self.backlog.add(tick)):
            OVERFLOWS.inc()
            self.needs_snapshot = True

    def replay(self, frames: Tick) -> None:
        """Let it go on where it was, without a snapshot."""
        self.needs_snapshot = False
        if frames:
            self.offer(frames, join(frames.values()))

    def snapshot(self, frame: Frame) -> None:
        """Hand over a snapshot; it takes the place of every event that waits already."""
        self.needs_snapshot = False
        if not self._writes(frame.data):
            self.backlog.begin_with(frame)

    def notice(self, news: Mapping[str, bytes], joined: bytes) -> None:
        """Hand over things of which only the latest counts, and the same as bytes."""
        if not self._writes(joined):
            self.backlog.note(news)

    def close(self, farewell: bytes) -> None:
        """End the stream after what is handed over and these last bytes."""
        self._is_closed = True
        if self._writes(farewell):
            self._wire.end()
        else:
            self.backlog.end_with(farewell)

    def leave(self) -> None:
        """Nothing is waited for any more."""
        if self._catching_up is not None:
            self._catching_up.cancel()

    def _writes(self, joined: bytes) -> bool:
        """Write at once if it keeps up; otherwise see to it that its backlog is written when it can be."""
        if self._catching_up is not None:
            return False
        if self._wire.write(joined):
            return True
        self._catching_up = asyncio.create_task(self._catch_up())
        return False

    async def _catch_up(self) -> None:
        try:
            while not self.backlog.is_empty:
                async with asyncio.timeout(self._send_seconds):
                    await self._wire.drained()
                self._wire.write(self.backlog.take())
        except TimeoutError:
            self._wire.abort()
        else:
            if self._is_closed:
                self._wire.end()
        finally:
            self._catching_up = None


class Browsers:
    """All of them, by what they look at."""

    def __init__(self, *, most: int, most_pending: int, send_seconds: float) -> None:
        self._most = most
        self._most_pending = most_pending
        self._send_seconds = send_seconds
        self._by_view: dict[View, set[Browser]] = {}
        self._count = 0
        self._are_closed = False

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Browser]:
        return (browser for group in self._by_view.values() for browser in group)

    @property
    def is_full(self) -> bool:
        """Whether one more would be too many, or none may come any more."""
        return self._count >= self._most or self._are_closed

    def open(self, view: View, wire: Wire) -> Browser:
        """A new stream, whose answer has begun."""
        browser = Browser(view, wire, most_pending=self._most_pending, send_seconds=self._send_seconds)
        self._by_view.setdefault(view, set()).add(browser)
        self._count += 1
        CLIENTS.set(self._count)
        return browser

    def leave(self, browser: Browser) -> None:
        """The stream is over; may be told twice."""
        group = self._by_view.get(browser.view, set())
        if browser in group:
            group.remove(browser)
            browser.leave()
            self._count -= 1
            CLIENTS.set(self._count)
        if not group:
            self._by_view.pop(browser.view, None)

    def groups(self) -> list[tuple[View, list[Browser]]]:
        """The views in use with their browsers, as they are now."""
        return [(view, list(group)) for view, group in self._by_view.items()]

    def close(self, farewell: bytes) -> None:
        """End every stream with these last bytes."""
        self._are_closed = True
        for browser in self:
            browser.close(farewell)
