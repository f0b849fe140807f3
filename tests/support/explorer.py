"""Every order of the statements of a few transactions, on a real Postgres.

Each participant runs one verb of a service on its own connection; a gate stands before each statement and
each commit. The explorer opens one gate at a time and comes back for every other choice it had, until all
orders are seen. A statement that waits for a lock is found in pg_blocking_pids and goes on when it may.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from tests.support.gates import Gates
from tests.support.hands import Hands

LOOK_SECONDS = 0.004

Verb = Callable[[Hands, Any], Awaitable[Any]]


@dataclass
class Participant:
    """One verb on its way. `at` is the gate where it stands; `moved` says that it reached one, or its end."""

    name: str
    hands: Hands
    at: str | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Any] | None = None
    waits: list[str] = field(default_factory=list)

    async def pass_gate(self, name: str) -> None:
        self.at = name
        self.moved.set()
        await self.go.wait()
        self.go.clear()

    @property
    def is_done(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def gates(self) -> Gates:
        return self.hands.gates


@dataclass
class Order:
    """One order that was tried: who went when, who had to wait, and what each verb gave."""

    steps: list[str] = field(default_factory=list)
    choices: list[tuple[int, list[int]]] = field(default_factory=list)
    waits: dict[str, list[str]] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    deadlocks: int = 0

    def __str__(self) -> str:
        return " > ".join(self.steps)


@dataclass
class Explorer:
    """Tries orders of these verbs. `preemptions` bounds how often a verb that could go on is left; None is no bound."""

    monitor: asyncpg.Connection
    hands: Sequence[Hands]
    names: Sequence[str]
    verbs: Sequence[Verb]
    preemptions: int | None = None

    async def orders(
        self, stage: Callable[[], Awaitable[Any]], after_commit: Callable[[str], Awaitable[None]]
    ) -> AsyncIterator[Order]:
        """Every order, each from a fresh stage; the caller looks at the database before it asks for the next."""
        prefixes: list[list[int]] = [[]]
        while prefixes:
            prefix = prefixes.pop()
            order = await self._play(prefix, await stage(), after_commit)
            chosen = [choice for choice, _ in order.choices]
            for depth in range(len(prefix), len(chosen)):
                for other in order.choices[depth][1]:
                    branch = [*chosen[:depth], other]
                    if other != chosen[depth] and self._fits(branch, order):
                        prefixes.append(branch)
            yield order

    def _fits(self, branch: list[int], order: Order) -> bool:
        if self.preemptions is None:
            return True
        left = sum(
            before != now and before in ready
            for before, now, (_, ready) in zip(branch, branch[1:], order.choices[1:], strict=False)
        )
        return left <= self.preemptions

    async def _play(self, prefix: list[int], facts: Any, after_commit: Callable[[str], Awaitable[None]]) -> Order:
        order = Order()
        people = [Participant(name, hands) for name, hands in zip(self.names, self.hands, strict=True)]
        for person, verb in zip(people, self.verbs, strict=True):
            person.gates.pass_gate = person.pass_gate
            person.task = asyncio.create_task(self._run(person, verb, facts), name=person.name)
            await self._rest(person)
        current = 0
        while not all(person.is_done for person in people):
            ready = [number for number, person in enumerate(people) if person.at is not None]
            if not ready:
                # All wait for each other: the database ends one of them.
                for person in people:
                    await self._rest(person, patient=True)
                continue
            depth = len(order.choices)
            current = prefix[depth] if depth < len(prefix) else current if current in ready else ready[0]
            order.choices.append((current, ready))
            await self._step(people[current], order)
            for person in people:
                if person.at is None and not person.is_done:
                    await self._rest(person)
            if order.steps[-1].endswith(".commit"):
                await after_commit(people[current].name)
        for person in people:
            person.gates.pass_gate = _no_gate
            order.deadlocks += person.gates.deadlocks
            person.gates.deadlocks = 0
            order.waits[person.name] = person.waits
            assert person.task is not None
            order.given[person.name] = person.task.exception() or person.task.result()
        return order

    @staticmethod
    async def _run(person: Participant, verb: Verb, facts: Any) -> Any:
        try:
            return await verb(person.hands, facts)
        finally:
            person.at = None
            person.moved.set()

    async def _step(self, person: Participant, order: Order) -> None:
        step = person.at
        assert step is not None
        order.steps.append(f"{person.name}.{step}")
        person.at = None
        person.moved.clear()
        person.go.set()
        if not await self._rest(person):
            person.waits.append(step)
            order.steps.append(f"({person.name} waits)")

    async def _rest(self, person: Participant, *, patient: bool = False) -> bool:
        """Until it stands at a gate or is done (True), or waits for somebody's lock (False)."""
        seconds = 5 if patient else LOOK_SECONDS
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await person.moved.wait()
            except TimeoutError:
                if await self.monitor.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", person.gates.pid):
                    return False
                seconds *= 2  # it only takes its time: looking more often would take it from it
            else:
                if person.task is not None and person.at is None:
                    await asyncio.wait([person.task])
                return True


async def _no_gate(_: str) -> None:
    """Every gate open."""
