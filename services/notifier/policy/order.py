"""Where a returning browser goes on, and which rows are news."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


def event_id(epoch: str, number: int) -> str:
    """The id of an event: this replica's life, and the number within it."""
    return f"{epoch}-{number}"


def number_of(last_event_id: str | None, epoch: str) -> int | None:
    """The number in an id that this very replica gave; None for any other id."""
    if not last_event_id:
        return None
    given_epoch, _, number = last_event_id.rpartition("-")
    return int(number) if given_epoch == epoch and number.isdecimal() and len(number) < 16 else None


@dataclass(frozen=True, slots=True)
class Kept(Generic[Item]):
    """An item of the ring with its number."""

    number: int
    item: Item


class Ring(Generic[Item]):
    """The last events, by number without a gap."""

    def __init__(self, size: int) -> None:
        self._kept: deque[Kept[Item]] = deque(maxlen=size)
        self._forgotten = 0

    def add(self, number: int, item: Item) -> None:
        """Keep an item; the oldest leaves when there is no more room."""
        if self._kept.maxlen == 0:
            self._forgotten = number
            return
        if len(self._kept) == self._kept.maxlen:
            self._forgotten = self._kept[0].number
        self._kept.append(Kept(number, item))

    def forget(self, number: int) -> None:
        """Nobody can go on from before this number any more: what happened there is not known."""
        self._kept.clear()
        self._forgotten = number

    def after(self, number: int, newest: int) -> list[Item] | None:
        """What came after this number; None when some of it was forgotten or the number is from the future."""
        if number < self._forgotten or number > newest:
            return None
        return [kept.item for kept in self._kept if kept.number > number]


class Seen:
    """What was sent last of each task, bounded: tells news from repetition."""

    def __init__(self, size: int = 20_000) -> None:
        self._size = size
        self._seen: OrderedDict[Any, tuple[int, int]] = OrderedDict()

    def is_news(self, task_id: object, version: int, content: bytes) -> bool:
        """Whether this version or this content was not sent yet; from now on it counts as sent."""
        mark = (version, hash(content))
        if self._seen.get(task_id) == mark:
            return False
        self._seen[task_id] = mark
        self._seen.move_to_end(task_id)
        if len(self._seen) > self._size:
            self._seen.popitem(last=False)
        return True

    def outdated(self, rows: Iterable[tuple[Any, int | None]]) -> list[Any]:
        """Of these tasks and versions, those that were sent in an older one, or whose version is not told."""
        return [
            task_id
            for task_id, version in rows
            if version is None or (known := self._seen.get(task_id)) is None or known[0] < version
        ]
