"""Totals at most once a second, and the beat by which browsers know that the stream lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from services.notifier.gateways.feed import Feed
from services.notifier.gateways.snapshots import Snapshots
from services.notifier.loops.fan_out import Inbox
from services.notifier.messages import STILL_HERE, View, encode
from services.notifier.metrics import EVENTS
from services.notifier.storage import Views

_REFRESH_SECONDS = 10.0


class Totals:
    """A loop: totals of each filter in use and the use of the agents' limits, when something changed."""

    name = "totals"

    def __init__(self, inbox: Inbox, feed: Feed, snapshots: Snapshots, views: Views, *, every_seconds: float) -> None:
        self.poll_seconds = every_seconds
        self._inbox = inbox
        self._feed = feed
        self._snapshots = snapshots
        self._views = views
        self._sent: dict[View, dict[str, bytes]] = {}
        self._good_since = 0.0

    async def run_once(self) -> bool:
        """Send what is new of them."""
        await self._snapshots.deliver_all()
        changed_at = self._inbox.totals_since
        # Use of a rate limit falls by itself, so it is looked at from time to time also without a change.
        if self._good_since > changed_at and time.monotonic() - self._good_since < _REFRESH_SECONDS:
            return False
        since = time.monotonic()
        sent: dict[View, dict[str, bytes]] = {}
        agents_event = b""
        for view, group in self._feed.browsers.groups():
            if not view.has_totals:
                continue
            summary = await self._views.summary.get(view.filter, after=changed_at)
            if not agents_event:
                agents = await self._views.agents.get(None, after=changed_at)
                agents_event = encode("agents", agents.answer)
                since = min(since, agents.since)
            since = min(since, summary.since)
            sent[view] = {"summary": encode("summary", summary.answer), "agents": agents_event}
            before = self._sent.get(view, {})
            news = {name: data for name, data in sent[view].items() if data != before.get(name)}
            for name in news:
                EVENTS.labels(name).inc()
            joined = b"".join(news.values())
            for browser in group if news else ():
                browser.notice(news, joined)
        self._sent = sent
        self._good_since = since
        return False


class Beat:
    """A loop: tells every browser how this replica hears, at once when it changes and every few seconds."""

    name = "beat"

    def __init__(self, feed: Feed, is_live: Callable[[], bool], replica: str, *, every_seconds: float) -> None:
        self.poll_seconds = min(0.5, every_seconds)
        self._every_seconds = every_seconds
        self._feed = feed
        self._is_live = is_live
        self._replica = replica
        self._beaten_at = 0.0
        self._was_live: bool | None = None

    async def run_once(self) -> bool:
        """Beat if it is time."""
        now = time.monotonic()
        is_live = self._is_live()
        if is_live != self._was_live or now - self._beaten_at >= self._every_seconds:
            self._was_live, self._beaten_at = is_live, now
            self._feed.notice_all("state", STILL_HERE + self.state())
        return False

    def state(self) -> bytes:
        """The event that says how this replica hears."""
        body = {
            "listener": "live" if self._is_live() else "polling",
            "replica": self._replica,
            "at": datetime.now(UTC),
        }
        return encode("state", body)
