"""The pairs, and a few triples, of verbs whose meeting matters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

from shared.runtime.http.problems import StateConflictError
from shared.testing.rows import make_agent, make_tasks
from tests.support.arena import Arena, Facts, Scenario
from tests.support.explorer import Verb
from tests.support.hands import Hands

Stage = Callable[[Arena], Awaitable[Facts]]


def waiting(count: int = 1, *, tokens: int = 10, **agent: Any) -> Stage:
    """Tasks that may be claimed."""

    async def stage(arena: Arena) -> Facts:
        await make_agent(arena.owner, default_tokens=10, lease_seconds=100, **agent)
        return Facts(await make_tasks(arena.owner, count, estimated_tokens=tokens))

    return stage


def running(
    count: int = 1, *, submitted: bool = True, overdue: bool = False, holder: str | None = None, **agent: Any
) -> Stage:
    """Tasks whose first attempt is leased, perhaps by one of the participants, and perhaps has its run."""

    async def stage(arena: Arena) -> Facts:
        facts = await waiting(count, **agent)(arena)
        hands = arena.hand if holder is None else next(each for each in arena.people if each.replica == holder)
        facts.attempts = [each.attempt_id for each in await hands.claim(count)]
        if submitted:
            await arena.hand.record_runs([(each, 70 + number) for number, each in enumerate(facts.attempts)])
        if overdue:
            arena.clock.move(1_000)
        return facts

    return stage


async def blocked(arena: Arena) -> Facts:
    """A task that waits for room, and two behind it that would fit and may overtake it once."""
    await make_agent(arena.owner, max_tpm=100, backfill=True, backfill_limit=1)
    await make_tasks(arena.owner, 1, estimated_tokens=60)
    await arena.hand.claim(1)
    return Facts(
        [
            *await make_tasks(arena.owner, 1, estimated_tokens=90),
            *await make_tasks(arena.owner, 2, estimated_tokens=10, priority=40),
        ]
    )


async def one_purse(arena: Arena) -> Facts:
    """A customer with money for one task, and a task of it at each of two agents."""
    for agent in ("parser", "other"):
        await make_agent(arena.owner, agent, expected_cost=Decimal(1))
    await arena.hand.set_customer("acme", Decimal(1))
    return Facts([(await make_tasks(arena.owner, 1, agent=agent, customer="acme"))[0] for agent in ("parser", "other")])


async def overtaken(arena: Arena) -> Facts:
    """A task whose first attempt is lost and whose second runs."""
    facts = await running(overdue=True, max_tpm=1_000_000)(arena)
    await arena.hand.lose(facts.attempts)
    arena.clock.move(1_000)
    await arena.hand.dispatcher.promote_due(10)
    facts.attempts += [each.attempt_id for each in await arena.hand.claim(1)]
    await arena.hand.record_runs([(facts.attempts[1], 80)])
    return facts


async def released(arena: Arena) -> Facts:
    """A task that was put back after an unanswered call: a run may live behind its token."""
    facts = await running(submitted=False)(arena)
    await arena.hand.release(facts.attempts)
    return facts


async def deferred(arena: Arena) -> Facts:
    """A task put back for a while, which is over."""
    facts = await running(submitted=False)(arena)
    await arena.hand.release(facts.attempts, 10)
    arena.clock.move(20)
    return facts


async def ended(arena: Arena) -> Facts:
    """A task that failed for good."""
    facts = await running()(arena)
    await arena.hand.fail(facts.attempts, retryable=False)
    return facts


async def claim(hands: Hands, _: Facts) -> Any:
    return await hands.claim(10)


async def claim_one(hands: Hands, _: Facts) -> Any:
    return await hands.claim(1)


async def claim_in_the_way(hands: Hands, _: Facts) -> Any:
    return await hands.claim_in_the_way()


def claim_of(agent: str) -> Verb:
    async def verb(hands: Hands, _: Facts) -> Any:
        return await hands.claim_of(agent)

    return verb


def set_agent(*, lock: bool = True, **settings: Any) -> Verb:
    async def verb(hands: Hands, _: Facts) -> Any:
        return await hands.set_agent(lock=lock, **settings)

    return verb


def act(action: str, **wish: Any) -> Verb:
    async def verb(hands: Hands, facts: Facts) -> Any:
        try:
            return await hands.act(action, facts.tasks[0], **wish)
        except StateConflictError:
            return "refused"

    return verb


def succeed(number: int = 0) -> Verb:
    async def verb(hands: Hands, facts: Facts) -> Any:
        return await hands.succeed([facts.attempts[number]], tokens=3 + number)

    return verb


def fail(number: int = 0, *, retryable: bool) -> Verb:
    async def verb(hands: Hands, facts: Facts) -> Any:
        return await hands.fail([facts.attempts[number]], retryable=retryable)

    return verb


async def heartbeat(hands: Hands, facts: Facts) -> Any:
    return await hands.beat(facts.attempts)


async def record(hands: Hands, facts: Facts) -> Any:
    return sorted(await hands.record_runs([(each, 90 + number) for number, each in enumerate(facts.attempts)]))


async def release(hands: Hands, facts: Facts) -> Any:
    return len(await hands.release(facts.attempts))


async def refuse(hands: Hands, facts: Facts) -> Any:
    return len(await hands.refuse(facts.attempts))


async def take_over(hands: Hands, _: Facts) -> Any:
    return await hands.take_over()


async def sweep(hands: Hands, _: Facts) -> Any:
    return await hands.sweep()


async def lose(hands: Hands, facts: Facts) -> Any:
    return len(await hands.lose(facts.attempts))


async def promote(hands: Hands, _: Facts) -> Any:
    return await hands.dispatcher.promote_due(10)


async def store(hands: Hands, facts: Facts) -> Any:
    return await hands.store_result(facts.attempts[0])


async def enqueue_keyed(hands: Hands, _: Facts) -> Any:
    return await hands.enqueue(idempotency_key="once")


def scenario(
    name: str, stage: Stage, *verbs: tuple[str, Verb], again: str = "", waits: str = "", preemptions: int | None = None
) -> Scenario:
    """A scenario; `again` and `waits` are names with spaces between."""
    return Scenario(name, stage, verbs, frozenset(again.split()), frozenset(waits.split()), preemptions)


SCENARIOS = {
    each.name: each
    for each in (
        scenario("q01 claim, claim: one slot", waiting(3, max_concurrent_tasks=1),
                 ("claim-p", claim), ("claim-q", claim)),
        scenario("r01 claim, claim: one token budget", waiting(8, max_tpm=20),
                 ("claim-p", claim), ("claim-q", claim)),
        scenario("q01 claim, claim that waits: one slot", waiting(3, max_concurrent_tasks=1),
                 ("claim-p", claim_in_the_way), ("claim-q", claim), again="claim-p claim-q", waits="claim-p claim-q"),
        scenario("r01 claim, claim that waits: one token budget", waiting(8, max_tpm=20),
                 ("claim-p", claim_in_the_way), ("claim-q", claim), again="claim-p claim-q", waits="claim-p claim-q"),
        scenario("claim, claim: no limit", waiting(2), ("claim-p", claim_one), ("claim-q", claim_one)),
        scenario("claim, first limit", waiting(3), ("claim", claim), ("limit", set_agent(max_concurrent_tasks=1)),
                 again="claim", waits="claim limit"),
        scenario("claim, lower limit", waiting(3, max_concurrent_tasks=3),
                 ("claim", claim), ("limit", set_agent(max_concurrent_tasks=1)), again="claim", waits="claim limit"),
        scenario("claim, first token budget", waiting(3),
                 ("claim", claim), ("limit", set_agent(max_tpm=10)), again="claim", waits="claim limit"),
        scenario("q01 claim, claim: one slot, by policy", waiting(3, max_concurrent_tasks=1, backfill=True),
                 ("claim-p", claim), ("claim-q", claim)),
        scenario("r01 claim, claim: one token budget, by policy", waiting(4, max_tpm=20, backfill=True),
                 ("claim-p", claim), ("claim-q", claim)),
        scenario("claim, claim: one spending budget", waiting(3, daily_budget=Decimal(1), expected_cost=Decimal(1)),
                 ("claim-p", claim), ("claim-q", claim)),
        scenario("claim, first spending budget", waiting(3, expected_cost=Decimal(1)),
                 ("claim", claim), ("limit", set_agent(daily_budget=Decimal(1))), again="claim", waits="claim limit"),
        scenario("claim, lower spending budget", waiting(3, daily_budget=Decimal(3), expected_cost=Decimal(1)),
                 ("claim", claim), ("limit", set_agent(daily_budget=Decimal(1))), again="claim", waits="claim limit"),
        scenario("claim, claim: one customer's budget at two agents", one_purse,
                 ("claim-p", claim_of("parser")), ("claim-q", claim_of("other")), again="claim-p claim-q",
                 preemptions=2),
        scenario("claim, claim: a task that may be overtaken once", blocked, ("claim-p", claim), ("claim-q", claim)),
        scenario("claim, reprioritise a task that is overtaken", blocked,
                 ("claim", claim), ("change", act("reprioritise", priority=90)), again="claim", waits="change"),
        scenario("claim, pause", waiting(3), ("claim", claim), ("limit", set_agent(paused=True)),
                 again="claim", waits="claim limit"),
        scenario("claim, claim, first limit", waiting(3),
                 ("limit", set_agent(lock=False, max_concurrent_tasks=1)), ("claim-p", claim), ("claim-q", claim),
                 again="claim-p claim-q", waits="claim-p claim-q limit", preemptions=2),
        scenario("claim, claim, settle: the slot becomes free", running(2, max_concurrent_tasks=2),
                 ("claim-p", claim), ("claim-q", claim), ("settle", succeed()), again="claim-p claim-q settle",
                 preemptions=1),
        scenario("c01 claim, cancel", waiting(), ("claim", claim), ("cancel", act("cancel")), again="claim",
                 waits="cancel"),
        scenario("claim, cancel: by policy", waiting(1, backfill=True), ("claim", claim), ("cancel", act("cancel")),
                 again="claim", waits="cancel"),
        scenario("claim, reprioritise", waiting(), ("claim", claim), ("change", act("reprioritise", priority=90)),
                 again="claim", waits="change"),
        scenario("c01 record_runs, cancel", running(submitted=False),
                 ("record", record), ("cancel", act("cancel")), waits="record cancel"),
        scenario("c01 release, cancel", running(submitted=False, holder="p"),
                 ("release", release), ("cancel", act("cancel")), waits="release cancel"),
        scenario("c01 record_runs of a released attempt, cancel", released,
                 ("record", record), ("cancel", act("cancel")), waits="record cancel"),
        scenario("record_runs, release by a stale dispatcher", running(submitted=False, holder="q"),
                 ("record", record), ("release", release), waits="record release"),
        scenario("record_runs, refuse by a stale dispatcher", running(submitted=False, holder="q"),
                 ("record", record), ("refuse", refuse), waits="record refuse"),
        scenario("w01 record_runs, settle", running(submitted=False),
                 ("record", record), ("settle", succeed()), again="settle", waits="record"),
        scenario("take_over, record_runs", running(submitted=False, overdue=True),
                 ("take", take_over), ("record", record), waits="record"),
        scenario("take_over, release", running(submitted=False, overdue=True, holder="q"),
                 ("take", take_over), ("release", release), waits="release"),
        scenario("take_over, take_over", running(submitted=False, overdue=True),
                 ("take-p", take_over), ("take-q", take_over), again="take-p take-q"),
        scenario("take_over, settle", running(submitted=False, overdue=True),
                 ("take", take_over), ("settle", succeed()), again="settle take"),
        scenario("l01 settle of two attempts: two successes", overtaken,
                 ("old", succeed(0)), ("new", succeed(1)), again="old new"),
        scenario("l01 settle of two attempts: failure and success", overtaken,
                 ("old", fail(0, retryable=False)), ("new", succeed(1)), again="old new"),
        scenario("w02 settle, settle: one report twice", running(max_tpm=1000),
                 ("one", succeed()), ("two", succeed()), again="one two"),
        scenario("w03 settle: success and failure of one attempt", running(),
                 ("success", succeed()), ("failure", fail(retryable=True)), again="success failure"),
        scenario("settle, cancel", running(), ("settle", succeed()), ("cancel", act("cancel")),
                 again="settle", waits="cancel"),
        scenario("settle failure, cancel", running(), ("settle", fail(retryable=True)), ("cancel", act("cancel")),
                 again="settle", waits="cancel"),
        scenario("settle, sweep", running(overdue=True), ("settle", succeed()), ("sweep", sweep),
                 again="settle", waits="sweep"),
        scenario("settle failure, sweep", running(overdue=True), ("settle", fail(retryable=True)), ("sweep", sweep),
                 again="settle", waits="sweep"),
        scenario("heartbeat, sweep", running(overdue=True), ("beat", heartbeat), ("sweep", sweep),
                 again="beat", waits="sweep"),
        scenario("sweep, sweep", running(overdue=True), ("sweep-p", sweep), ("sweep-q", sweep),
                 waits="sweep-p sweep-q"),
        scenario("sweep, cancel", running(overdue=True), ("sweep", sweep), ("cancel", act("cancel")),
                 waits="sweep cancel"),
        scenario("promote, cancel", deferred, ("promote", promote), ("cancel", act("cancel")), waits="cancel"),
        scenario("promote, promote", deferred, ("promote-p", promote), ("promote-q", promote)),
        scenario("enqueue, enqueue: one key", waiting(0), ("one", enqueue_keyed), ("two", enqueue_keyed),
                 waits="one two"),
        scenario("retry, retry: one copy", ended, ("one", act("retry")), ("two", act("retry")), waits="one two"),
        scenario("two batches over the same tasks behind a third", running(2, submitted=False, overdue=True),
                 ("cancel", act("cancel")), ("record", record), ("lose", lose), waits="cancel record lose",
                 preemptions=2),
    )
}  # fmt: skip
