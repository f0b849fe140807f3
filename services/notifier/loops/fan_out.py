"""Reads what changed once for all browsers, and hands it out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import orjson

from services.notifier.gateways.feed import Feed
from services.notifier.gateways.snapshots import Snapshots
from services.notifier.messages import Name
from services.notifier.policy.order import Seen
from services.notifier.policy.pace import rests_until
from services.notifier.storage import NotifierStorage
from shared.contract.errors import TransientError
from shared.contract.shown import shown_cost, shown_task

_BATCH = 500


class Inbox:
    """What notes and polls named since the last look. Handlers only note it down; they must not block."""

    def __init__(self) -> None:
        self.tasks: set[UUID] = set()
        self.costs: set[UUID] = set()
        self.is_everything = False
        self.totals_since = time.monotonic()
        """When something last changed that totals or agents may show (monotonic seconds)."""

    @property
    def is_filled(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.tasks or self.costs or self.is_everything)

    def hear_tasks(self, ids: list[str] | None) -> None:
        """Tasks changed; None or what is no id means that anything may have."""
        self._hear(self.tasks, ids)

    def hear_costs(self, ids: list[str] | None) -> None:
        """The costs of tasks changed."""
        self._hear(self.costs, ids)

    def hear_config(self, _: list[str] | None) -> None:
        """Agents' limits changed."""
        self.totals_since = time.monotonic()

    def take(self) -> tuple[set[UUID], set[UUID], bool]:
        """All of it; the inbox is empty then."""
        taken = self.tasks, self.costs, self.is_everything
        self.tasks, self.costs, self.is_everything = set(), set(), False
        return taken

    def _hear(self, into: set[UUID], ids: list[str] | None) -> None:
        self.totals_since = time.monotonic()
        try:
            into.update(map(UUID, ids or ()))
        except ValueError:
            self.is_everything = True
        if ids is None:
            self.is_everything = True


class FanOut:
    """A loop: the first change after a silence leaves at once, later ones gather for a moment.

    Where handing out takes long they gather for longer: it rests at least as long as it worked.
    """

    name = "fan_out"

    def __init__(
        self, storage: NotifierStorage, inbox: Inbox, feed: Feed, snapshots: Snapshots, seen: Seen, *,
        gather_seconds: float,
    ) -> None:  # fmt: skip
        self.poll_seconds = gather_seconds
        self._storage = storage
        self._inbox = inbox
        self._feed = feed
        self._snapshots = snapshots
        self._seen = seen
        self._gather_seconds = gather_seconds
        self._rests_until = 0.0

    async def run_once(self) -> bool:
        """Look at what was named."""
        if not self._inbox.is_filled:
            return False
        await asyncio.sleep(max(0.0, self._rests_until - time.monotonic()))
        began = time.monotonic()
        tasks, costs, is_everything = self._inbox.take()
        if not len(self._feed.browsers):
            # Nobody looks: the database may sleep. Whoever comes gets a snapshot.
            self._feed.lose_track()
            return False
        try:
            if is_everything:
                self._feed.lose_track()
            await self._look(tasks, costs)
            await self._snapshots.deliver_all()
        except TransientError:
            self._inbox.tasks |= tasks
            self._inbox.costs |= costs
            self._inbox.is_everything |= is_everything
            raise
        self._rests_until = rests_until(began, time.monotonic(), self._gather_seconds)
        return self._inbox.is_filled

    async def _look(self, tasks: set[UUID], costs: set[UUID]) -> None:
        named = sorted(tasks | costs)
        for start in range(0, len(named), _BATCH):
            rows = await self._storage.read_tasks(named[start : start + _BATCH])
            self._feed.publish(self._news(rows, costs - tasks))

    def _news(self, rows: Iterable[Any], only_costs: set[UUID]) -> Iterable[tuple[Name, Any, object]]:
        for row in rows:
            task = shown_task(row, row["waiting_reason"])
            if not self._seen.is_news(row["id"], row["version"], orjson.dumps(task)):
                continue
            if row["id"] in only_costs:
                yield "cost", row, {"id": task["id"], "version": task["version"], **shown_cost(row)}
            else:
                yield "task", row, task
