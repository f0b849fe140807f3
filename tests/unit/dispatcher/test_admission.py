"""Who may start now: never over a limit, in order unless allowed, overtaken so often and no oftener, fair by weight."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from services.dispatcher.policy.admission import (
    Admission,
    Candidate,
    Line,
    Room,
    Rules,
    Share,
    admit,
    lines_of,
    projected_tokens,
)

START = datetime(2030, 1, 1, tzinfo=UTC)


def task(
    number: int, tokens: int = 10, customer: str | None = None, priority: int = 50, overtaken: int = 0
) -> Candidate:
    return Candidate(UUID(int=number), customer, priority, START + timedelta(seconds=number), tokens, overtaken)


def numbers(found: Admission) -> list[int]:
    return [each.candidate.task_id.int for each in found.picks]


queues = st.lists(
    st.tuples(
        st.integers(1, 60), st.sampled_from(["a", "b", "c", None]), st.sampled_from([10, 50, 90]), st.integers(0, 4)
    ),
    max_size=40,
).map(lambda rows: sorted((task(n, *row) for n, row in enumerate(rows, 1)), key=lambda each: each.place))
rooms = st.builds(
    Room,
    slots=st.none() | st.integers(0, 12),
    tokens_left=st.none() | st.integers(0, 100),
    max_tpm=st.just(100),
    is_idle=st.booleans(),
    cost_left=st.none() | st.decimals(0, 5, places=1),
    cost=st.sampled_from([Decimal(0), Decimal("0.5"), Decimal(1)]),
).map(lambda room: room if room.tokens_left is not None else replace(room, max_tpm=None))
rule_sets = st.builds(
    Rules, overtakes=st.integers(0, 4), weights=st.none() | st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 9))
)
purse_sets = st.dictionaries(st.sampled_from("abc"), st.decimals(0, 4, places=1))


@settings(deadline=None)
@given(queues, rooms, rule_sets, purse_sets, st.integers(1, 30), st.booleans())
def test_nothing_is_ever_exceeded(
    queue: list[Candidate], room: Room, rules: Rules, purses: dict[str, Decimal], most: int, split: bool
) -> None:
    found = admit(lines_of(queue, 40 if split else None), room, rules, most=most, purses=purses)
    picked = [each.candidate for each in found.picks]
    assert len(picked) == len(set(picked)) <= most
    assert room.slots is None or len(picked) <= room.slots
    alone = [each for each in found.picks if each.is_oversized]
    if alone:
        assert room.is_idle
        assert len(picked) == 1
    elif room.tokens_left is not None:
        assert sum(each.tokens for each in picked) <= room.tokens_left
    assert room.cost_left is None or len(picked) * room.cost <= max(room.cost_left, Decimal(0))
    for customer, left in purses.items():
        assert sum(each.customer == customer for each in picked) * room.cost <= left


@settings(deadline=None)
@given(queues, rooms, st.integers(1, 30))
def test_q04_without_options_it_is_the_order_of_the_queue_up_to_the_first_that_does_not_fit(
    queue: list[Candidate], room: Room, most: int
) -> None:
    found = admit(lines_of(queue, None), room, Rules(), most=most)
    assert [each.candidate for each in found.picks] == queue[: len(found.picks)]
    assert not found.overtaken
    if len(found.picks) < min(most, len(queue)):
        left = (
            None if room.tokens_left is None else room.tokens_left - sum(each.candidate.tokens for each in found.picks)
        )
        is_full = room.slots is not None and len(found.picks) == room.slots
        is_spent = room.cost_left is not None and (len(found.picks) + 1) * room.cost > room.cost_left
        does_not_fit = left is not None and queue[len(found.picks)].tokens > left
        assert is_full or is_spent or does_not_fit or found.picks[-1].is_oversized


@settings(deadline=None)
@given(queues, rooms, st.integers(1, 4))
def test_backfill_overtakes_each_waiting_task_so_often_and_no_oftener(
    queue: list[Candidate], room: Room, overtakes: int
) -> None:
    found = admit(lines_of(queue, None), room, Rules(overtakes=overtakes), most=30)
    picked = [each.candidate for each in found.picks]
    assert picked == sorted(picked, key=lambda each: each.place)
    passed: Counter[UUID] = Counter()
    for each in picked:
        passed.update(other.task_id for other in queue if other.place < each.place and other not in picked)
    assert passed == found.overtaken
    before = {each.task_id: each.overtaken for each in queue}
    assert all(before[each] + times <= overtakes for each, times in found.overtaken.items())


def test_a_task_that_was_overtaken_often_enough_is_waited_for() -> None:
    room = Room(tokens_left=30, max_tpm=100, is_idle=False)
    queue = [task(1, 90), task(2, 10), task(3, 10)]
    assert numbers(admit([Line(queue)], room, Rules(overtakes=1), most=9)) == [2]
    worn = [task(1, 90, overtaken=1), *queue[1:]]
    assert numbers(admit([Line(worn)], room, Rules(overtakes=1), most=9)) == []
    assert numbers(admit([Line(queue)], room, Rules(), most=9)) == []


def test_a_task_beyond_the_whole_budget_runs_alone_when_nothing_else_does() -> None:
    queue = [task(1, 500), task(2, 10)]
    idle = Room(tokens_left=100, max_tpm=100)
    (pick,) = admit([Line(queue)], idle, Rules(), most=9).picks
    assert pick.is_oversized
    busy = replace(idle, is_idle=False)
    assert numbers(admit([Line(queue)], busy, Rules(), most=9)) == []


def test_a_customer_whose_budget_is_spent_costs_the_others_nothing() -> None:
    queue = [*(task(n, customer="spent") for n in range(1, 30)), task(30, customer="other"), task(31)]
    found = admit(lines_of(queue, 40), Room(cost=Decimal(1)), Rules(), most=9, purses={"spent": Decimal("0.9")})
    assert numbers(found) == [30, 31]


def test_a_line_that_was_cut_ends_the_turn_where_its_next_task_is_not_known() -> None:
    lines = [Line([task(1, customer="a"), task(2, customer="a")], is_cut=True), Line([task(9, customer="b")])]
    assert numbers(admit(lines, Room(), Rules(), most=9)) == [1, 2]


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.2, 5), min_size=2),
    st.lists(st.integers(1, 50), min_size=8, max_size=8),
    st.lists(st.integers(1, 5), min_size=20, max_size=40),
)
def test_q03_shares_of_customers_that_always_wait_stay_within_one_task_each(
    weights: dict[str, float], sizes: list[int], turns: list[int]
) -> None:
    """Start-time fair queueing: served work by weight differs by at most the largest task of either, at any moment."""
    shares: dict[str, Share] = {}
    served: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for most in turns:
        queue = [
            task(1000 * k + taken[name] + n, sizes[(taken[name] + n + k) % 8], name)
            for k, name in enumerate(weights)
            for n in range(8)
        ]
        found = admit(lines_of(queue, 8), Room(), Rules(weights=weights), most=most, shares=shares)
        assert len(found.picks) == most
        shares |= found.shares
        for each in found.picks:
            name = each.candidate.customer or ""
            served[name] += each.candidate.tokens
            taken[name] += 1
        for (one, weight), (other, weight_of_other) in itertools.combinations(weights.items(), 2):
            apart = abs(served[one] / weight - served[other] / weight_of_other)
            assert apart <= max(sizes) / weight + max(sizes) / weight_of_other + 1e-6


def test_who_was_away_gets_no_arrears() -> None:
    shares: dict[str, Share] = {}
    for n in range(50):
        shares |= admit([Line([task(n, customer="busy")])], Room(), Rules(weights={}), most=1, shares=shares).shares
    queue = [task(100 + n, customer=name) for n in range(6) for name in ("busy", "back")]
    found = admit(lines_of(queue, 40), Room(), Rules(weights={}), most=6, shares=shares)
    assert Counter(each.candidate.customer for each in found.picks) == {"busy": 3, "back": 3}


def test_r07_the_projected_rate_is_never_less_than_a_minutes_worth() -> None:
    assert projected_tokens(6000, 20) == 6000
    assert projected_tokens(6000, 600) == 600
    assert projected_tokens(7, 61) == 7
