from __future__ import annotations

import asyncio
import time

import pytest

from services.notifier.gateways.backlog import Backlog
from services.notifier.messages import Frame
from services.notifier.policy.order import Ring, Seen, event_id, number_of
from services.notifier.policy.sharing import Shared
from shared.testing.wait import until


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("e-5", 5),
        ("e-0", 0),
        ("f-5", None),
        ("e-", None),
        ("e--5", None),
        ("5", None),
        (None, None),
        ("e-" + "9" * 40, None),
    ],
)
def test_only_an_id_of_this_life_is_gone_on_from(given: str | None, number: int | None) -> None:
    assert number_of(given, "e") == number
    assert event_id("e", 5) == "e-5"


def test_a_ring_says_what_came_after_or_that_it_does_not_know() -> None:
    ring: Ring[str] = Ring(3)
    assert ring.after(0, 0) == []
    for number in range(1, 6):
        ring.add(number, f"c{number}")
    assert ring.after(2, 5) == ["c3", "c4", "c5"]
    assert ring.after(5, 5) == []
    assert ring.after(1, 5) is None
    assert ring.after(6, 5) is None
    ring.forget(6)
    assert ring.after(5, 6) is None
    assert ring.after(6, 6) == []
    nothing: Ring[str] = Ring(0)
    nothing.add(1, "x")
    assert nothing.after(0, 1) is None


def test_what_was_sent_is_no_news() -> None:
    seen = Seen(2)
    assert seen.is_news("a", 1, b"x")
    assert not seen.is_news("a", 1, b"x")
    assert seen.is_news("a", 1, b"y")
    assert seen.outdated([("a", 1), ("a", 2), ("b", 1), ("a", None)]) == ["a", "b", "a"]
    seen.is_news("b", 1, b"")
    seen.is_news("c", 1, b"")
    assert seen.outdated([("a", 1)]) == ["a"]


def frame(number: int, text: str) -> Frame:
    return Frame(number, text.encode())


def test_a_backlog_holds_the_latest_of_each_task_in_order() -> None:
    backlog = Backlog(10)
    assert backlog.add({("task", "a"): frame(1, "a1"), ("task", "b"): frame(2, "b2")})
    assert backlog.add({("task", "a"): frame(3, "a3")})
    assert len(backlog) == 2
    assert backlog.take() == b"b2a3"
    assert backlog.is_empty
    assert backlog.add({("task", "a"): frame(4, "a4")})
    assert backlog.take() == b"a4"


def test_a_snapshot_takes_the_place_of_older_events_only() -> None:
    backlog = Backlog(10)
    backlog.note({"state": b"s"})
    backlog.add({("task", "a"): frame(1, "a1"), ("task", "b"): frame(5, "b5")})
    backlog.begin_with(frame(3, "snap"))
    assert backlog.take() == b"snapb5s"
    assert backlog.is_empty


def test_too_much_is_forgotten_and_said() -> None:
    backlog = Backlog(2)
    backlog.note({"state": b"old", "summary": b"s"})
    assert not backlog.add({("task", n): frame(n, "x") for n in range(3)})
    assert len(backlog) == 0
    backlog.note({"state": b"new"})
    assert backlog.take() == b"news"


def test_nothing_comes_after_the_last_words() -> None:
    backlog = Backlog(2)
    backlog.end_with(b"bye")
    backlog.note({"state": b"s"})
    backlog.add({("task", "a"): frame(1, "a1")})
    assert not backlog.is_empty
    assert backlog.take() == b"a1sbye"


async def test_a_hundred_who_ask_at_once_share_one_answer() -> None:
    asked = 0
    go = asyncio.Event()

    async def find(question: str) -> str:
        nonlocal asked
        asked += 1
        await go.wait()
        return question.upper()

    shared: Shared[str, str] = Shared(find, life_seconds=60)
    waiting = [asyncio.create_task(shared.get("a")) for _ in range(100)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go.set()
    answers = await asyncio.gather(*waiting[1:])
    assert {answer.answer for answer in answers} == {"A"}
    assert asked == 1
    shared.forget()
    await shared.get("a")
    assert asked == 2


async def test_an_answer_from_before_a_change_serves_only_who_does_not_mind() -> None:
    asked = 0

    async def find(_: str) -> int:
        nonlocal asked
        asked += 1
        return asked

    shared: Shared[str, int] = Shared(find, life_seconds=60)
    await shared.get("a")
    changed_at = time.monotonic()
    assert (await shared.get("a")).answer == 1

    async def is_sought_anew() -> bool:
        return (await shared.get("a", after=changed_at)).since >= changed_at

    await until(is_sought_anew, seconds=10, every=0.01)
    assert (await shared.get("a", after=changed_at)).answer == asked == 2


async def test_a_failed_search_is_tried_again_by_the_next() -> None:
    outcomes = iter([ValueError("no"), None])

    async def find(_: str) -> str:
        if (error := next(outcomes)) is not None:
            raise error
        return "yes"

    shared: Shared[str, str] = Shared(find, life_seconds=60)
    with pytest.raises(ValueError, match="no"):
        await shared.get("a")
    assert (await shared.get("a")).answer == "yes"
