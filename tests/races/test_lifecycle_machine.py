"""Every verb in any order, by two replicas with stale knowledge, against a model of the protocol.

The statements run through the services' own storage classes on a real Postgres whose clock stands still
until a rule moves it. After every step each row must be as the model says and every invariant must hold.

    LOCKKEEPER_TEST_EXAMPLES=2000 pytest tests/races/test_lifecycle_machine.py

runs as many stories; the seed is printed, and LOCKKEEPER_TEST_SEED=<seed> tells the same ones again.
"""

from __future__ import annotations

import itertools
import os
import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from services.callback_receiver.messages import Settled
from services.sweeper.policy import Finding
from shared.contract.errors import ConflictError
from shared.contract.ids import uuid7
from shared.runtime.http.problems import StateConflictError
from tests.support.postgres import PostgresServer
from tests.support.task_model import OPEN, Attempt, Task
from tests.support.variants import MACHINE_VARIANTS, Variant
from tests.support.world import World

EXAMPLES = int(os.environ.get("LOCKKEEPER_TEST_EXAMPLES", "12"))
STEPS = 40
SEED = int(os.environ.get("LOCKKEEPER_TEST_SEED", random.randrange(1 << 32)))

# Mostly the newest; older ones speak up too.
pick = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 6])
replica = st.sampled_from(["a", "b"])
agent = st.sampled_from(["counter", "weigher"])
tokens = st.sampled_from([None, 0, 7, 25])
LOSSES = [Finding.LOST, Finding.NEVER_STARTED, Finding.HOPELESS, Finding.TOO_LONG]


class LifecycleMachine(RuleBasedStateMachine):
    """Rules are verbs; `pick` counts back from the newest attempt or task, so stale ones are reached as well."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        world.reset()
        self.model = world.model
        self.runs = itertools.count(1)

    def attempt(self, number: int) -> tuple[Task, Attempt] | None:
        pairs = sorted(self.model.all(), key=lambda pair: (pair[1].leased_at, pair[1].id), reverse=True)
        return pairs[number % len(pairs)] if pairs else None

    def task(self, number: int) -> Task | None:
        tasks = list(reversed(self.model.tasks.values()))
        return tasks[number % len(tasks)] if tasks else None

    def hands(self, name: str) -> Any:
        return self.world.hands[name]

    @initialize(sizes=st.lists(st.sampled_from([5, 10, 20, 20]), min_size=3, max_size=5), submitted=st.booleans())
    def tasks_wait_and_one_runs(self, sizes: list[int], *, submitted: bool) -> None:
        for size in sizes:
            self.enqueue("weigher", 50, size, None, 0, 2)
        self.enqueue("counter", 60, 10, None, 0, 2)
        self.claim("a", 1)
        if submitted:
            self.record_run("a", 0)

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        self.world.compare()

    def teardown(self) -> None:
        self.world.check_invariants()
        self.world.check_nothing_is_stranded()

    # Time, limits, replicas.

    @rule(seconds=st.sampled_from([1, 1, 20, 61, 130, 400]))
    def time_passes(self, seconds: int) -> None:
        self.world.move_clock(seconds)

    @rule(name=agent, most=st.sampled_from([None, 0, 1, 2, 3]), tpm=st.sampled_from([None, 0, 10, 30, 60]))
    def set_limits(self, name: str, most: int | None, tpm: int | None) -> None:
        self.world.do(self.hands("a").set_agent(name, max_concurrent_tasks=most, max_tpm=tpm))
        self.model.agents[name].most, self.model.agents[name].tpm = most, tpm

    @rule(name=agent, paused=st.booleans())
    def pause(self, name: str, *, paused: bool) -> None:
        self.world.do(self.hands("a").set_agent(name, paused=paused))
        self.model.agents[name].paused = paused

    @rule(name=replica, stopped=st.booleans())
    def replica_stops_or_returns(self, name: str, *, stopped: bool) -> None:
        self.world.do(self.hands(name).live(stopped=stopped))
        (self.model.stopped.add if stopped else self.model.stopped.discard)(name)

    # Enqueue, and what operators do.

    @rule(
        name=agent, priority=st.sampled_from([40, 50, 50, 60]), size=st.sampled_from([5, 10, 20, 100]),
        key=st.sampled_from([None, None, "one", "two"]), delay=st.sampled_from([0, 0, 0, 15]),
        most=st.integers(1, 3),
    )  # fmt: skip
    def enqueue(self, name: str, priority: int, size: int, key: str | None, delay: int, most: int) -> None:
        model = self.model
        at = model.now + timedelta(seconds=delay) if delay else None
        content = hash((name, priority, size, at, most))
        verb = self.hands("a").enqueue(
            name, priority=priority, estimated_tokens=size, idempotency_key=key, available_at=at, max_attempts=most
        )
        if key in model.keys and model.keys[key][1] != content:
            with pytest.raises(ConflictError):
                self.world.do(verb)
            return
        made = self.world.do(verb)
        if key in model.keys:
            assert made == model.keys[key][0]
            return
        if key is not None:
            model.keys[key] = (made, content)
        model.tasks[made] = Task(made, name, priority, size, model.now, at or model.now, most, deferred=delay > 0)

    @rule(number=pick)
    def cancel(self, number: int) -> None:
        task = self.task(number)
        if task is not None and self.acts("cancel", task, allowed=not task.is_over):
            self.model.cancel(task)

    @rule(number=pick, priority=st.sampled_from([40, 60]))
    def reprioritise(self, number: int, priority: int) -> None:
        task = self.task(number)
        if task is not None and self.acts("reprioritise", task, allowed=not task.is_over, priority=priority):
            task.priority = priority

    @rule(number=pick)
    def retry(self, number: int) -> None:
        task = self.task(number)
        if task is None:
            return
        if task.status == "enqueued":
            if self.acts("retry", task, allowed=task.available_at > self.model.now):
                task.available_at, task.deferred = self.model.now, False
        else:
            self.redo("retry", task, allowed=task.status in {"failed", "cancelled"})

    @rule(number=pick)
    def reprocess(self, number: int) -> None:
        if task := self.task(number):
            self.redo("reprocess", task, allowed=task.is_over)

    def acts(self, action: str, task: Task, *, allowed: bool, priority: int | None = None) -> UUID | None:
        verb = self.hands("a").act(action, task.id, priority=priority)
        if allowed:
            shown: UUID = self.world.do(verb)
            return shown
        with pytest.raises(StateConflictError):
            self.world.do(verb)
        return None

    def redo(self, action: str, task: Task, *, allowed: bool) -> None:
        copy = self.acts(action, task, allowed=allowed)
        standing = [t.id for t in self.model.tasks.values() if t.source == task.id and not t.is_over]
        if copy is None or standing:
            assert copy is None or copy in standing
            return
        now = self.model.now
        self.model.tasks[copy] = Task(
            copy, task.agent, task.priority, task.tokens, now, now, task.max_attempts, source=task.id
        )

    # The dispatcher.

    @rule(name=replica, limit=st.integers(1, 5))
    def claim(self, name: str, limit: int) -> None:
        expected = self.model.claimable(limit)
        leased = self.world.do(self.hands(name).claim(limit))
        assert [each.task_id for each in leased] == [task.id for task in expected]
        for task, each in zip(expected, leased, strict=True):
            self.model.claim(task, each.attempt_id, name, 30)

    @rule()
    def promote(self) -> None:
        due = [
            t
            for t in self.model.tasks.values()
            if t.status == "enqueued" and t.deferred and t.available_at <= self.model.now
        ]
        assert self.world.do(self.hands("a").dispatcher.promote_due(100)) == len(due)
        for task in due:
            task.deferred = False

    @rule(name=replica, number=pick)
    def record_run(self, name: str, number: int) -> None:
        """The runner answers the same token with the same run, whoever asks and however late."""
        if pair := self.attempt(number):
            run_id = pair[1].run_id or next(self.runs)
            unwanted = self.world.do(self.hands(name).record_runs([(pair[1].id, run_id)]))
            assert unwanted == [self.model.record_run(*pair, run_id)]

    @rule(name=replica, number=pick, seconds=st.sampled_from([0.0, 5.0]))
    def release(self, name: str, number: int, seconds: float) -> None:
        if pair := self.attempt(number):
            moves = self.model.may_release(*pair, name)
            assert self.world.do(self.hands(name).release([pair[1].id], seconds)) == ({pair[0].id} if moves else set())
            if moves:
                self.model.release(*pair, seconds)

    @rule(name=replica, number=pick)
    def refuse(self, name: str, number: int) -> None:
        if pair := self.attempt(number):
            moves = self.model.may_release(*pair, name)
            assert self.world.do(self.hands(name).refuse([pair[1].id])) == ({pair[0].id} if moves else set())
            if moves:
                self.model.refuse(*pair)

    @rule(name=replica, number=pick, seconds=st.sampled_from([0.0, 3.0]))
    def expire(self, name: str, number: int, seconds: float) -> None:
        if pair := self.attempt(number):
            self.world.do(self.hands(name).expire([pair[1].id], seconds))
            self.model.expire(*pair, name, seconds)

    @rule(name=replica)
    def take_over(self, name: str) -> None:
        expected = self.model.orphans()
        taken = self.world.do(self.hands(name).take_over())
        assert {each.attempt_id for each in taken} == expected
        for each in taken:
            task = self.model.tasks[each.task_id]
            task.holder, task.lease = name, self.model.later(30)

    @rule(confirm=st.booleans())
    def take_cancellations(self, *, confirm: bool) -> None:
        expected = self.model.unwanted()
        taken = self.world.do(self.hands("a").take_cancellations())
        assert {each.attempt_id for each in taken} == expected
        if confirm:
            self.world.do(self.hands("a").dispatcher.confirm_cancellation([each.attempt_id for each in taken]))
            for _, attempt in self.model.all():
                attempt.is_confirmed |= attempt.id in expected

    # The receiver.

    @rule(name=replica, number=pick, used=tokens, stored=st.booleans())
    def succeed(self, name: str, number: int, used: int | None, *, stored: bool) -> None:
        if pair := self.attempt(number):
            verb = self.hands(name).succeed([pair[1].id], used, stored=stored)
            self.settles(pair, verb, succeeded=True, stored=stored, used=used)

    @rule(name=replica, number=pick, used=tokens, retryable=st.booleans())
    def fail(self, name: str, number: int, used: int | None, *, retryable: bool) -> None:
        if pair := self.attempt(number):
            verb = self.hands(name).fail([pair[1].id], retryable=retryable, tokens=used)
            self.settles(pair, verb, retryable=retryable, used=used)

    def settles(
        self, pair: tuple[Task, Attempt], verb: Any, *, succeeded: bool = False, retryable: bool = False,
        stored: bool = False, used: int | None = None,
    ) -> None:  # fmt: skip
        open_others = {a.id for a in pair[0].attempts if a is not pair[1] and a.status in OPEN}
        (settled,) = self.world.do(verb)
        expected = self.model.settle(*pair, succeeded=succeeded, retryable=retryable, stored=stored, tokens=used)
        self.agree(settled, expected, open_others)
        if expected[0] == "retry":
            self.world.adopt_backoff(pair[0].id)

    @staticmethod
    def agree(settled: Settled, expected: tuple[str, str], open_others: set[UUID]) -> None:
        assert (settled.verdict, settled.outcome) == expected
        assert set(settled.superseded) == (open_others if expected[0] == "complete" else set())

    @rule(name=replica, number=pick)
    def heartbeat(self, name: str, number: int) -> None:
        if pair := self.attempt(number):
            (settled,) = self.world.do(self.hands(name).beat([pair[1].id]))
            assert (settled.verdict, settled.outcome, settled.cancel_requested) == self.model.heartbeat(*pair)

    @rule()
    def report_of_an_unknown_attempt(self) -> None:
        (settled,) = self.world.do(self.hands("a").succeed([uuid7()]))
        assert (settled.verdict, settled.write) == ("missing", "missing")

    @rule(number=pick)
    def store_result(self, number: int) -> None:
        if pair := self.attempt(number):
            self.world.do(self.hands("a").store_result(pair[1].id))
            pair[1].has_result = True

    @rule(name=replica, number=pick)
    def recover(self, name: str, number: int) -> None:
        """The sweeper hands on a result that it saw, whatever happened since; the receiver settles it at most once."""
        pair = self.attempt(number)
        if pair is None or not pair[1].has_result:
            return
        self.world.do(self.hands(name).sweeper.record_recovered([pair[1].id]))
        open_others = {a.id for a in pair[0].attempts if a is not pair[1] and a.status in OPEN}
        for settled in self.world.do(self.hands(name).settle_recovered()):
            assert settled.attempt_id == pair[1].id
            expected = self.model.settle(*pair, succeeded=True, retryable=False, stored=True, tokens=None)
            self.agree(settled, expected, open_others)

    # The sweeper.

    @rule()
    def list_overdue(self) -> None:
        assert self.world.do(self.hands("a").overdue()) == self.model.overdue()

    @rule(number=pick, seconds=st.sampled_from([10, 60]))
    def extend(self, number: int, seconds: int) -> None:
        if pair := self.attempt(number):
            extends = self.model.may_sweep(pair[1].id)
            assert self.world.do(self.hands("b").extend([pair[1].id], seconds)) == int(extends)
            if extends:
                pair[0].lease = self.model.later(seconds)

    @rule(number=pick, finding=st.sampled_from(LOSSES))
    def lose(self, number: int, finding: Finding) -> None:
        if pair := self.attempt(number):
            loses = self.model.may_sweep(pair[1].id) and not pair[1].has_result
            assert self.world.do(self.hands("b").lose([pair[1].id], finding)) == ({pair[0].id} if loses else set())
            if loses:
                self.model.lose(*pair, finding.value)
                if pair[0].status == "enqueued":
                    self.world.adopt_backoff(pair[0].id)


def tell(
    world: World, examples: int, seeded: int, *, phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink)
) -> None:
    """Run the machine for so many stories."""

    @seed(seeded)
    def machine() -> LifecycleMachine:
        return LifecycleMachine(world)

    chosen = settings(
        max_examples=examples, stateful_step_count=STEPS, deadline=None, phases=phases, database=None,
        suppress_health_check=list(HealthCheck), print_blob=False, report_multiple_bugs=False,
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.timeout(60 + EXAMPLES * 10)
def test_any_story_of_verbs_goes_as_the_model_says(postgres: PostgresServer) -> None:
    print(f"LOCKKEEPER_TEST_SEED={SEED} LOCKKEEPER_TEST_EXAMPLES={EXAMPLES}")
    with World(postgres, "machine") as world:
        tell(world, EXAMPLES, SEED)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("variant", MACHINE_VARIANTS, ids=lambda variant: variant.name)
def test_a_broken_statement_is_found(postgres: PostgresServer, variant: Variant) -> None:
    with World(postgres, "broken", variant.rewrite()) as world, pytest.raises(AssertionError) as found:
        tell(world, 100, 1, phases=(Phase.generate,))
    print(found.value)
