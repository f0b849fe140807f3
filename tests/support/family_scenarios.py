"""Families where verbs meet: a parent ends once, by its rule, with all its children ended."""

from __future__ import annotations

from typing import Any

from shared.contract.errors import ConflictError
from shared.testing.rows import make_agent
from tests.support.arena import Arena, Facts
from tests.support.explorer import Verb
from tests.support.hands import Hands
from tests.support.scenarios import Stage, act, claim, fail, scenario, succeed


def family(children: int = 2, *, ends: str = "", gather: Any = "all_completed", running: bool = True) -> Stage:
    """A parent and its children, whose first ones have ended: a letter each, c(ompleted) or f(ailed)."""

    async def stage(arena: Arena) -> Facts:
        await make_agent(arena.owner, default_tokens=10, lease_seconds=100)
        parent, young = await arena.hand.enqueue_family(gather, children)
        facts = Facts([parent, *young])
        if running:
            facts.attempts = [each.attempt_id for each in await arena.hand.claim(children)]
            await arena.hand.record_runs([(each, 70 + number) for number, each in enumerate(facts.attempts)])
        for attempt, end in zip(facts.attempts, ends, strict=False):
            if end == "c":
                await arena.hand.succeed([attempt])
            else:
                await arena.hand.fail([attempt], retryable=False)
        return facts

    return stage


async def gather(hands: Hands, _: Facts) -> Any:
    return await hands.gather()


async def add_child(hands: Hands, facts: Facts) -> Any:
    try:
        await hands.enqueue(parent_task_id=facts.tasks[0])
    except ConflictError as error:
        return error.reason
    return "added"


def of_child(verb: Verb, number: int = 1) -> Verb:
    """The verb on a child instead of the parent."""

    async def on_child(hands: Hands, facts: Facts) -> Any:
        return await verb(hands, Facts(facts.tasks[number:], facts.attempts))

    return on_child


FAMILY_SCENARIOS = {
    each.name: each
    for each in (
        scenario("gather, add a child", family(1, ends="c"), ("gather", gather), ("add", add_child),
                 again="gather", waits="add"),
        scenario("gather, gather", family(2, ends="cf", gather="any_completed"), ("one", gather), ("two", gather)),
        scenario("gather, cancel the parent", family(1, ends="f"), ("gather", gather), ("cancel", act("cancel")),
                 again="gather", waits="cancel"),
        scenario("gather, retry a failed child", family(2, ends="cf"), ("gather", gather),
                 ("retry", of_child(act("retry"), 2)), again="gather", waits="retry"),
        scenario("gather, settle the last child", family(2, ends="c"), ("gather", gather), ("settle", succeed(1)),
                 again="gather settle"),
        scenario("gather, cancel the last child", family(2, ends="c"), ("gather", gather),
                 ("cancel", of_child(act("cancel"), 2)), again="gather", waits="cancel"),
        scenario("cancel the parent, settle a child", family(1), ("cancel", act("cancel")), ("settle", succeed()),
                 again="settle", waits="cancel", preemptions=2),
        scenario("cancel the parent, a child fails", family(1), ("cancel", act("cancel")),
                 ("settle", fail(retryable=True)), again="settle", waits="cancel", preemptions=2),
        scenario("cancel the parent, claim the children", family(2, running=False), ("cancel", act("cancel")),
                 ("claim", claim), again="claim", waits="cancel", preemptions=2),
        scenario("cancel the parent, add a child", family(1), ("cancel", act("cancel")), ("add", add_child),
                 waits="cancel add", preemptions=2),
        scenario("cancel the parent, cancel a child", family(2), ("parent", act("cancel")),
                 ("child", of_child(act("cancel"), 2)), waits="parent child", preemptions=2),
        scenario("cancel the parent, retry a failed child", family(2, ends="f"), ("cancel", act("cancel")),
                 ("retry", of_child(act("retry"))), waits="cancel retry", preemptions=2),
    )
}  # fmt: skip
