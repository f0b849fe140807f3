"""The stream of changes: numbers them, keeps the last ones, hands them to the browsers they concern."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.notifier.gateways.backlog import Key, Tick
from services.notifier.gateways.browsers import Browser, Browsers
from services.notifier.messages import Frame, Name, encode, join
from services.notifier.metrics import EVENTS
from services.notifier.policy.order import Ring, event_id, number_of
from shared.contract.task_filter import TaskFilter

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a task: its event, and the event for those whose filter it has left."""

    key: Key
    row: Row
    frame: Frame
    gone: Frame


class Feed:
    """Numbers rise by one for each change of this replica's life; the epoch tells this life from others."""

    def __init__(self, browsers: Browsers, *, replay_events: int) -> None:
        self.browsers = browsers
        self.epoch = secrets.token_hex(4)
        self.number = 0
        self._ring: Ring[Change] = Ring(replay_events)

    def id_of(self, number: int) -> str:
        """The event id of a number."""
        return event_id(self.epoch, number)

    def publish(self, changes: Iterable[tuple[Name, Row, object]]) -> None:
        """Number these changes (event, row of `task_overview`, body) and hand them to whom they concern."""
        made: list[Change] = []
        for name, row, body in changes:
            self.number += 1
            number, its_id = self.number, self.id_of(self.number)
            gone = encode("gone", {"id": str(row["id"]), "version": row["version"]}, its_id)
            change = Change((name, row["id"]), row, Frame(number, encode(name, body, its_id)), Frame(number, gone))
            self._ring.add(number, change)
            made.append(change)
            EVENTS.labels(name).inc()
        for view, group in self.browsers.groups() if made else ():
            tick = _concerning(made, view.filter)
            if tick:
                joined = join(tick.values())
                for browser in group:
                    browser.offer(tick, joined)

    def lose_track(self) -> None:
        """Changes may have been missed: nobody can go on from before, everybody needs a snapshot."""
        self.number += 1
        self._ring.forget(self.number)
        for browser in self.browsers:
            browser.needs_snapshot = True

    def after(self, number: int, chosen: TaskFilter) -> Tick | None:
        """What came after a number and concerns the filter; None when that is not known any more."""
        changes = self._ring.after(number, self.number)
        return None if changes is None else _concerning(changes, chosen)

    def resume(self, browser: Browser, last_event_id: str | None) -> bool:
        """Let a browser go on after the last event it had; False when it needs a snapshot."""
        number = number_of(last_event_id, self.epoch)
        missed = None if number is None else self.after(number, browser.view.filter)
        if missed is None:
            return False
        browser.replay(missed)
        return True

    def notice_all(self, name: Name, data: bytes) -> None:
        """Hand everybody something of which only the latest counts."""
        for browser in self.browsers:
            browser.notice({name: data}, data)


def _concerning(changes: Sequence[Change], chosen: TaskFilter) -> dict[Key, Frame]:
    if chosen.is_empty:
        return {change.key: change.frame for change in changes}
    return {
        change.key: change.frame if chosen.wants_status(change.row["status"]) else change.gone
        for change in changes
        if chosen.matches(change.row)
    }
