"""Looks at the event log, whether notes arrive or not: a note is a hint and may be lost."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.notifier.gateways.browsers import Browsers
from services.notifier.loops.fan_out import Inbox
from services.notifier.policy.order import Seen
from services.notifier.storage import NotifierStorage

_OVERLAP_SECONDS = 40.0
"""Longer than any transaction of ours may last: an event is dated before its commit."""

_FARTHEST_SECONDS = 180.0


class Poll:
    """A loop: often while notes do not arrive, seldom while they do."""

    name = "poll"

    def __init__(
        self, storage: NotifierStorage, inbox: Inbox, browsers: Browsers, seen: Seen, is_live: Callable[[], bool], *,
        poll_seconds: float, live_poll_seconds: float,
    ) -> None:  # fmt: skip
        self.poll_seconds = poll_seconds
        self._storage = storage
        self._inbox = inbox
        self._browsers = browsers
        self._seen = seen
        self._is_live = is_live
        self._live_poll_seconds = live_poll_seconds
        self._polled_at = time.monotonic()

    async def run_once(self) -> bool:
        """Name what changed lately and was not sent."""
        now = time.monotonic()
        if not len(self._browsers):
            self._polled_at = now
            return False
        silence = now - self._polled_at
        if self._is_live() and silence < self._live_poll_seconds:
            return False
        rows = await self._storage.list_recently_changed(min(silence, _FARTHEST_SECONDS) + _OVERLAP_SECONDS)
        self._polled_at = now
        if silence > _FARTHEST_SECONDS:
            self._inbox.hear_tasks(None)
        elif outdated := self._seen.outdated((row["id"], row["version"]) for row in rows):
            self._inbox.tasks.update(outdated)
            self._inbox.totals_since = now
        return False
