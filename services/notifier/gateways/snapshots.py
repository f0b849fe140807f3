"""Snapshots for browsers that come, that fell too far behind, or that may have missed something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from services.notifier.gateways.browsers import Browser
from services.notifier.gateways.feed import Feed
from services.notifier.messages import Frame, View, encode, join
from services.notifier.metrics import EVENTS
from services.notifier.policy.sharing import Shared
from shared.contract.errors import TransientError


class Snapshots:
    """One read of the database per view and second, however many browsers ask."""

    def __init__(self, feed: Feed, read: Callable[[View], Awaitable[dict[str, Any]]], *, life_seconds: float) -> None:
        self._feed = feed
        self._read = read
        self._shared: Shared[View, Frame] = Shared(self._make, life_seconds=life_seconds)

    async def deliver(self, browser: Browser) -> None:
        """Hand the browser a snapshot and what came since. Raises TransientError while there is none to be had."""
        frame = (await self._shared.get(browser.view)).answer
        since = self._feed.after(frame.number, browser.view.filter)
        if since is None:
            # Older than what is still known: what lies between would be lost.
            self._shared.forget()
            frame = (await self._shared.get(browser.view)).answer
            since = self._feed.after(frame.number, browser.view.filter)
        browser.snapshot(frame)
        if since:
            browser.offer(since, join(since.values()))
        elif since is None:
            browser.needs_snapshot = True

    async def deliver_all(self) -> None:
        """Hand a snapshot to everybody who needs one."""
        for _, group in self._feed.browsers.groups():
            for browser in group:
                if browser.needs_snapshot:
                    await self.deliver(browser)

    async def try_deliver(self, browser: Browser) -> None:
        """The same for one browser; while the database is away it stays in need, and is served later."""
        try:
            await self.deliver(browser)
        except TransientError:
            browser.needs_snapshot = True

    async def _make(self, view: View) -> Frame:
        # Taken before the reading begins: what changes meanwhile is sent again rather than lost.
        number = self._feed.number
        body = await self._read(view)
        EVENTS.labels("snapshot").inc()
        return Frame(number, encode("snapshot", body, self._feed.id_of(number)))
