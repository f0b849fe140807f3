"""Every verb from every state of a task and its attempt: only the legal moves move, and refusals say why."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from services.callback_receiver.messages import Kind, Verdict
from services.callback_receiver.policy import classify
from services.sweeper.policy import Finding
from shared.contract.errors import RejectedError
from shared.contract.ids import uuid7
from shared.contract.lifecycle import LEGAL_MOVES, AttemptStatus, TaskStatus
from shared.runtime.http.problems import StateConflictError
from tests.support.postgres import PostgresServer
from tests.support.task_model import HELD, OVER, Attempt, Task
from tests.support.variants import MATRIX_VARIANTS, Variant
from tests.support.world import World

Pair = tuple[Task, Attempt]
Verb = Callable[[World, list[Pair]], None]

REACHABLE: dict[str, tuple[str | None, ...]] = {
    "enqueued": (None, "released", "failed", "lost"),
    "processing": ("leased", "submitted", "running"),
    "completed": ("completed", "superseded"),
    "failed": ("failed", "lost"),
    "cancelled": (None, "cancelled", "failed", "lost"),
}
CERTAIN_RUN = frozenset({"submitted", "running", "lost"})
SPEAKS = {"completed": (True,), "failed": (True, False), "superseded": (True, False), "cancelled": (True, False)}


@dataclass(frozen=True)
class State:
    """One place in the matrix."""

    task: str
    attempt: str | None
    run: bool = False
    overdue: bool = False
    spoken: bool = False
    has_result: bool = False
    is_last: bool = False
    older: str | None = None


def states() -> Iterator[State]:
    """Every reachable state, with what else may be the case in it."""
    for task, attempts in REACHABLE.items():
        for attempt in attempts:
            runs = (True,) if attempt in CERTAIN_RUN else (False,) if attempt is None else (False, True)
            live = (False, True) if task in {"enqueued", "processing"} and attempt is not None else (False,)
            overdue = (False, True) if task == "processing" else (False,)
            older = (None, "lost") if attempt is not None else (None,)
            if (task, attempt) == ("completed", "superseded"):
                older = ("completed",)
            spoken = SPEAKS.get(attempt or "", (False,))
            for choice in itertools.product(runs, overdue, spoken, live, live, older):
                yield State(task, attempt, *choice)


def put(world: World, state: State) -> Task:
    """The state's rows in the model; `stage` writes them down."""
    model, now = world.model, world.clock.now
    task = Task(
        uuid7(), "counter", 50, 10, now, now, 2 if state.is_last and state.older else 1 if state.is_last else 9,
        status=state.task, unspent=state.attempt == "released",
    )  # fmt: skip
    if state.older is not None:
        task.attempts.append(
            Attempt(uuid7(), 1, now, 10, state.older, 7, True, None, now, 0, state.older == "completed")
        )
    if state.attempt is not None:
        over = state.attempt not in HELD | {"released"}
        wanted = state.attempt not in {"cancelled", "superseded"}
        task.attempts.append(
            Attempt(uuid7(), len(task.attempts) + 1, now, 0 if state.attempt == "released" else 10, state.attempt,
                    1000 + len(model.tasks) if state.run else None, state.run, None, now if over else None, 0,
                    state.spoken, None if wanted else now, False, state.has_result)
        )  # fmt: skip
    if state.task == "processing":
        task.lease, task.holder, task.reserved = now + timedelta(seconds=-1 if state.overdue else 60), "a", 10
    model.tasks[task.id] = task
    return task


async def write(world: World) -> None:
    """The model's rows, straight into the tables."""
    await world.owner.execute("UPDATE lockkeeper.agents SET max_concurrent_tasks = NULL, max_tpm = NULL")
    await world.owner.executemany(
        "INSERT INTO lockkeeper.tasks (id, agent, priority, status, attempt, attempt_id, attempt_unspent, max_attempts, "
        "created_at, available_at, finished_at, lease_expires_at, locked_by, reserved_tpm, estimated_tokens) "
        "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10, $11, $12, $13, 10)",
        [
            (t.id, t.agent, t.priority, t.status, t.number, t.current.id if t.current else None, t.unspent,
             t.max_attempts, t.created_at, t.created_at if t.is_over else None, t.lease, t.holder, t.reserved)
            for t in world.model.tasks.values()
        ],
    )  # fmt: skip
    await world.owner.executemany(
        "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, run_id, leased_at, submitted_at, "
        "finished_at, trace_state, cancel_requested_at, reserved_tpm) "
        "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        [
            (a.id, t.id, t.agent, a.number, a.status, a.run_id, a.leased_at, a.leased_at if a.is_submitted else None,
             a.finished_at, "unverified" if a.spoken else None, a.cancel_at, a.reserved)
            for t, a in world.model.all()
        ],
    )  # fmt: skip
    await world.owner.executemany(
        "INSERT INTO lockkeeper.attempt_results (attempt_id, result) VALUES ($1, '{}')",
        [(a.id,) for _, a in world.model.all() if a.has_result],
    )


def ids(pairs: list[Pair]) -> list[Any]:
    return [attempt.id for _, attempt in pairs]


def record_runs(world: World, pairs: list[Pair]) -> None:
    runs = {a.id: a.run_id or 5000 + n for n, (_, a) in enumerate(pairs)}
    said = dict(world.do(world.hands["b"].dispatcher.record_runs(list(runs.items()))))
    assert said == {t.id: world.model.record_run(t, a, runs[a.id]) for t, a in pairs}


def release(holder: str) -> Verb:
    def verb(world: World, pairs: list[Pair]) -> None:
        moved = world.do(world.hands[holder].release(ids(pairs), 5))
        allowed = [pair for pair in pairs if world.model.may_release(*pair, holder)]
        assert moved == {task.id for task, _ in allowed}
        for pair in allowed:
            world.model.release(*pair, 5)

    return verb


def refuse(holder: str) -> Verb:
    def verb(world: World, pairs: list[Pair]) -> None:
        moved = world.do(world.hands[holder].refuse(ids(pairs)))
        allowed = [pair for pair in pairs if world.model.may_release(*pair, holder)]
        assert moved == {task.id for task, _ in allowed}
        for pair in allowed:
            world.model.refuse(*pair)

    return verb


def expire(holder: str) -> Verb:
    def verb(world: World, pairs: list[Pair]) -> None:
        world.do(world.hands[holder].expire(ids(pairs), 3))
        for pair in pairs:
            world.model.expire(*pair, holder, 3)

    return verb


def settle(kind: Kind, *, retryable: bool = False, stored: bool = False) -> Verb:
    def verb(world: World, pairs: list[Pair]) -> None:
        hands = world.hands["a"]
        if kind is Kind.RESULT:
            said = world.do(hands.succeed(ids(pairs), 20, stored=stored))
        else:
            said = world.do(hands.fail(ids(pairs), retryable=retryable, tokens=20))
        found = {each.attempt_id: each for each in said}
        assert found.keys() == set(ids(pairs))
        for task, attempt in pairs:
            verdict, outcome = world.model.settle(
                task, attempt, succeeded=kind is Kind.RESULT, retryable=retryable, stored=stored, tokens=20
            )
            each = found[attempt.id]
            assert (each.verdict, each.outcome) == (verdict, outcome)
            assert each.write is classify(kind, Verdict(verdict), outcome)
            if verdict == "retry":
                world.adopt_backoff(task.id)

    return verb


def beat(world: World, pairs: list[Pair]) -> None:
    found = {each.attempt_id: each for each in world.do(world.hands["a"].beat(ids(pairs)))}
    for task, attempt in pairs:
        each = found[attempt.id]
        assert (each.verdict, each.outcome, each.cancel_requested) == world.model.heartbeat(task, attempt)


def lose(finding: Finding) -> Verb:
    def verb(world: World, pairs: list[Pair]) -> None:
        moved = world.do(world.hands["a"].lose(ids(pairs), finding))
        allowed = [(t, a) for t, a in pairs if world.model.may_sweep(a.id) and not a.has_result]
        assert moved == {task.id for task, _ in allowed}
        for task, attempt in allowed:
            world.model.lose(task, attempt, finding.value)
            if task.status == "enqueued":
                world.adopt_backoff(task.id)

    return verb


def extend(world: World, pairs: list[Pair]) -> None:
    allowed = [task for task, attempt in pairs if world.model.may_sweep(attempt.id)]
    assert world.do(world.hands["a"].extend(ids(pairs), 60)) == len(allowed)
    for task in allowed:
        task.lease = world.model.later(60)


def look(world: World, _: list[Pair]) -> None:
    """Who looks after what: nothing that is overdue is left out."""
    assert world.do(world.hands["a"].overdue()) == world.model.overdue()
    expected = world.model.orphans()
    assert {each.attempt_id for each in world.do(world.hands["b"].take_over())} == expected
    for task, attempt in world.model.all():
        if attempt.id in expected:
            task.holder, task.lease = "b", world.model.later(30)


def claim(world: World, _: list[Pair]) -> None:
    expected = world.model.claimable(500)
    leased = world.do(world.hands["b"].claim(500))
    assert [each.task_id for each in leased] == [task.id for task in expected]
    for task, each in zip(expected, leased, strict=True):
        world.model.claim(task, each.attempt_id, "b", 30)


def act(action: str, allowed: Callable[[Task], bool], change: Callable[[World, Task, UUID], None]) -> Verb:
    def verb(world: World, _: list[Pair]) -> None:
        seen: set[Any] = set()
        for task in list(world.model.tasks.values()):
            shape = (task.status, task.current and (task.current.status, task.current.run_id is None))
            if shape in seen:
                continue
            seen.add(shape)
            wish = world.hands["a"].act(action, task.id, priority=90)
            if allowed(task):
                change(world, task, world.do(wish))
            else:
                with pytest.raises(StateConflictError):
                    world.do(wish)

    return verb


def _cancel(world: World, task: Task, _: UUID) -> None:
    world.model.cancel(task)


def _reprioritise(_: World, task: Task, __: UUID) -> None:
    task.priority = 90


def _copy(world: World, task: Task, shown: UUID) -> None:
    """An ended task stays; a new one does it anew."""
    assert shown not in world.model.tasks
    now = world.model.now
    world.model.tasks[shown] = Task(shown, task.agent, task.priority, task.tokens, now, now, task.max_attempts)


VERBS: dict[str, Verb] = {
    "record_runs": record_runs,
    "release": release("a"),
    "release by another": release("b"),
    "refuse": refuse("a"),
    "refuse by another": refuse("b"),
    "expire_leases of one's own": expire("a"),
    "expire_leases of another": expire("b"),
    "take_over and list_overdue": look,
    "claim": claim,
    "success": settle(Kind.RESULT),
    "success with a stored result": settle(Kind.RESULT, stored=True),
    "retryable failure": settle(Kind.FAILURE, retryable=True),
    "final failure": settle(Kind.FAILURE),
    "heartbeat": beat,
    "extend": extend,
    **{f"lose, {finding.value}": lose(finding) for finding in Finding if finding.value in
       {"lost", "never_started", "hopeless", "too_long"}},
    "cancel": act("cancel", lambda task: not task.is_over, _cancel),
    "reprioritise": act("reprioritise", lambda task: not task.is_over, _reprioritise),
    "retry": act("retry", lambda task: task.status in {"failed", "cancelled"}, _copy),
    "reprocess": act("reprocess", lambda task: task.is_over, _copy),
}  # fmt: skip


@pytest.fixture(scope="module")
def world(postgres: PostgresServer) -> Iterator[World]:
    with World(postgres, "matrix") as found:
        yield found


def run(world: World, verb: str, which: int) -> None:
    """The verb on every task's newest (-1) or oldest (0) attempt, from every reachable state at once."""
    world.reset()
    world.model.agents["counter"].most = None
    for state in states():
        put(world, state)
    world.do(write(world))
    before = {task.id: task.status for task in world.model.tasks.values()}
    pairs = [(task, task.attempts[which]) for task in world.model.tasks.values() if len(task.attempts) > 1 + which]
    VERBS[verb](world, pairs)
    world.compare()
    for task in map(world.model.tasks.__getitem__, before):
        move = (TaskStatus(before[task.id]), TaskStatus(task.status))
        assert move[0] is move[1] or move in LEGAL_MOVES


@pytest.mark.parametrize("which", [-1, 0], ids=["newest", "older"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_moves_what_it_may_from_every_state(world: World, verb: str, which: int) -> None:
    run(world, verb, which)


@pytest.mark.parametrize("verb", VERBS)
def test_even_states_that_cannot_be_stay_within_the_law(world: World, verb: str) -> None:
    """A task that ended stays as it is, whatever nonsense stands beside it; others move along an arrow or not at all."""
    world.reset()
    for task, attempt in itertools.product(TaskStatus, AttemptStatus):
        if attempt.value not in REACHABLE[task.value]:
            put(world, State(task.value, attempt.value, run=True))
    world.do(write(world))
    before = {row["id"]: row for row in world.do(world.owner.fetch("SELECT * FROM lockkeeper.tasks"))}
    pairs = [(task, task.attempts[-1]) for task in world.model.tasks.values()]
    with suppress(AssertionError):  # The model speaks of what can be.
        VERBS[verb](world, pairs)
    for row in world.do(world.owner.fetch("SELECT * FROM lockkeeper.tasks WHERE id = ANY ($1)", list(before))):
        was = before[row["id"]]
        move = (TaskStatus(was["status"]), TaskStatus(row["status"]))
        assert was == row if was["status"] in OVER else move[0] is move[1] or move in LEGAL_MOVES


@pytest.mark.parametrize("variant", MATRIX_VARIANTS, ids=lambda variant: variant.name)
def test_a_broken_statement_is_found(world: World, variant: Variant) -> None:
    verb, _, which = variant.scenario.partition("/")
    for gates in world.gates:
        gates.rewrite = variant.rewrite()
    try:
        with pytest.raises((AssertionError, RejectedError)) as found:
            run(world, verb, 0 if which else -1)
    finally:
        for gates in world.gates:
            gates.rewrite = {}
    print(found.value)
