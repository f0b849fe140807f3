"""Where scenarios of concurrent verbs are explored, and how an order is judged.

An order is right when what it leaves and answers is what some serial order leaves and answers, when every
invariant holds, nobody deadlocked, and nobody waited who promises not to. A verb that found a row busy and
gave nothing is run once more at the end, as its loop would.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from uuid import UUID

from services.callback_receiver.messages import Settled
from shared.contract.rows import LeasedAttempt
from shared.db.connecting import connect
from shared.db.invariants import violations
from tests.conftest import NEWEST, TestDatabase
from tests.support.explorer import Explorer, Order, Verb
from tests.support.gates import Clock, Gates, Rewrite
from tests.support.hands import Hands
from tests.support.postgres import PostgresServer
from tests.support.world import EMPTY

T = TypeVar("T")

EVERYWHERE = os.environ.get("LOCKKEEPER_TEST_ORDERS") == "all"
FEW = 2
"""On an older Postgres a verb that could go on is left so often at most; `LOCKKEEPER_TEST_ORDERS=all` tries all there too."""

_PICTURE = """
SELECT t.status, t.attempt, t.overtaken, t.attempt_unspent AND t.status = 'enqueued' AS unspent, t.spared_attempts, t.priority,
       t.deferred, t.locked_by, t.reserved_tpm, t.lease_expires_at,
       (SELECT array_agg(e.verb ORDER BY e.version) FROM lockkeeper.task_events e WHERE e.task_id = t.id) AS verbs,
       (SELECT array_agg((x.attempt, x.status, x.run_id, x.cancel_requested_at IS NOT NULL, x.trace_state IS NOT NULL,
                          x.used_tokens)::text ORDER BY x.attempt, x.id)
          FROM lockkeeper.task_attempts x WHERE x.task_id = t.id) AS attempts
  FROM lockkeeper.tasks t
 ORDER BY t.created_at, t.id
"""

_OVER_THE_LIMIT = """
SELECT h.agent, h.running, h.max_concurrent_tasks, h.reserved_tpm, h.max_tpm
  FROM lockkeeper.agent_headroom h
 WHERE (h.running > h.max_concurrent_tasks OR h.reserved_tpm > h.max_tpm)
   AND EXISTS (SELECT FROM lockkeeper.tasks t WHERE t.agent = h.agent AND t.locked_by = $1)
UNION ALL
-- A budget that has less than nothing left, or one that was not asked.
SELECT t.agent, NULL, NULL, NULL, NULL
  FROM lockkeeper.tasks t
  JOIN lockkeeper.budget_state b ON (b.scope, b.name) IN (('agent', t.agent), ('customer', t.customer))
 WHERE t.locked_by = $1
   AND (b.cost_left < 0 OR NOT EXISTS (SELECT FROM lockkeeper.reservations r WHERE r.attempt_id = t.attempt_id))
"""

_ALL_LIVE = (
    "; INSERT INTO lockkeeper.replicas (id, service) SELECT id, 'dispatcher' FROM unnest('{stage,p,q,r}'::text[]) AS id"
)

_STRAY_RUNS = """
SELECT x.id, x.status, x.run_id
  FROM lockkeeper.task_attempts x JOIN lockkeeper.tasks t ON t.id = x.task_id
 WHERE t.status IN ('completed', 'failed', 'cancelled') AND x.run_id IS NOT NULL AND x.trace_state IS NULL
   AND x.status IN ('cancelled', 'superseded', 'failed') AND x.cancel_requested_at IS NULL
"""


@dataclass
class Facts:
    """What a stage made, in order."""

    tasks: list[UUID] = field(default_factory=list)
    attempts: list[UUID] = field(default_factory=list)


@dataclass(frozen=True)
class Scenario:
    """Verbs that meet. `again` may find a row busy; `waits` may wait for another's lock, all others promise not to."""

    name: str
    stage: Callable[[Arena], Awaitable[Facts]]
    verbs: Sequence[tuple[str, Verb]]
    again: frozenset[str] = frozenset()
    waits: frozenset[str] = frozenset()
    preemptions: int | None = None


@dataclass
class Judged:
    """How many orders were seen, and what was wrong with which."""

    orders: int = 0
    faults: list[str] = field(default_factory=list)


class Arena:
    """Used as a context: one database, a stage hand and three participants on one clock."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self._server = server
        self._name = name
        self._runner = asyncio.Runner()
        self._serial: dict[str, list[str]] = {}
        self.clock = Clock()
        self.gates = [Gates(self.clock) for _ in range(4)]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self.run(self._open())
        return self

    async def _open(self) -> None:
        await self._server.clone(self._name)
        database = TestDatabase(
            self._server, self._name, await connect(self._server.url(database=self._name), name="test-owner")
        )
        self.owner = database.owner
        self.hand, *self.people = [
            await Hands(database, replica, gates).__aenter__()
            for replica, gates in zip(("stage", "p", "q", "r"), self.gates, strict=True)
        ]

    def __exit__(self, *error: object) -> None:
        self.run(self._close())
        self._runner.__exit__(*error)

    async def _close(self) -> None:
        for hands in (self.hand, *self.people):
            await hands.__aexit__()
        await self.owner.close()
        await self._server.drop(self._name)

    async def explore(self, scenario: Scenario, rewrite: Rewrite | None = None, *, until_fault: bool = False) -> Judged:
        """Every order of the scenario; with rewritten statements, judged by what the real ones do serially."""
        right = await self._serial_pictures(scenario)
        for gates in self.gates[1:]:
            gates.rewrite = rewrite or {}
        judged, told = Judged(), list[str]()
        names = [name for name, _ in scenario.verbs]
        verbs = [verb for _, verb in scenario.verbs]
        facts = Facts()

        async def stage() -> Facts:
            nonlocal facts
            facts = await self._staged(scenario)
            return facts

        async def after_commit(name: str) -> None:
            if name.startswith("claim"):
                claimer = self.people[names.index(name)].replica
                rows = await self.owner.fetch(_OVER_THE_LIMIT, claimer)
                told.extend(f"a claim committed above the limit in force: {dict(row)}" for row in rows)

        most = scenario.preemptions
        if self._server.version < NEWEST and not until_fault and not EVERYWHERE:
            most = FEW if most is None else min(most, FEW)
        explorer = Explorer(self.owner, self.people[: len(names)], names, verbs, most)
        try:
            async for order in explorer.orders(stage, after_commit):
                judged.orders += 1
                told.extend(await self._faults(scenario, order, facts, right))
                judged.faults.extend(f"{order}\n    {fault}" for fault in told)
                told.clear()
                if until_fault and judged.faults:
                    break
        finally:
            for gates in self.gates[1:]:
                gates.rewrite = {}
        return judged

    async def _faults(self, scenario: Scenario, order: Order, facts: Facts, right: list[str]) -> list[str]:
        found = []
        for (name, verb), hands in zip(scenario.verbs, self.people, strict=False):
            given = order.given[name]
            if isinstance(given, BaseException):
                found.append(f"{name} raised {type(given).__name__}: {given}")
            elif name in scenario.again and not given:
                order.given[name] = await verb(hands, facts)
            if name not in scenario.waits and order.waits[name]:
                found.append(f"{name} waited in {order.waits[name]}")
        picture = await self._picture(order.given)
        if picture not in right:
            found.append("no serial order does this:\n" + picture + "\nbut:\n" + "\nor:\n".join(right))
        if order.deadlocks:
            found.append("deadlock")
        found += [f"{each.name}: {each.rows}" for each in await violations(self.owner)]
        found += [f"nobody ends this run: {dict(row)}" for row in await self.owner.fetch(_STRAY_RUNS)]
        return found

    async def _staged(self, scenario: Scenario) -> Facts:
        self.clock.now = Clock().now
        await self.owner.execute(EMPTY + _ALL_LIVE)
        return await scenario.stage(self)

    async def _serial_pictures(self, scenario: Scenario) -> list[str]:
        if scenario.name not in self._serial:
            pictures = []
            for turn in itertools.permutations(range(len(scenario.verbs))):
                facts = await self._staged(scenario)
                given = {}
                for number in turn:
                    name, verb = scenario.verbs[number]
                    given[name] = await verb(self.people[number], facts)
                pictures.append(await self._picture(given))
            self._serial[scenario.name] = list(dict.fromkeys(pictures))
        return self._serial[scenario.name]

    async def _picture(self, given: dict[str, Any]) -> str:
        rows = await self.owner.fetch(_PICTURE)
        ids = [row["id"] for row in await self.owner.fetch("SELECT id FROM lockkeeper.tasks ORDER BY created_at, id")]
        lines = [f"{name}: {_plain(given[name], ids)}" for name in sorted(given)]
        for row in rows:
            lease = row["lease_expires_at"]
            left = None if lease is None else (lease - self.clock.now).total_seconds()
            lines.append(str({**row, "lease_expires_at": left}))
        return "\n".join(lines)


def _plain(value: Any, ids: list[UUID]) -> Any:
    """An answer without what differs from run to run."""
    match value:
        case Settled():
            return value.verdict.value, value.outcome, value.cancel_requested, len(value.superseded)
        case LeasedAttempt():
            return ids.index(value.task_id), value.attempt
        case UUID():
            return ids.index(value) if value in ids else "another"
        case list() | set() | tuple():
            return [_plain(each, ids) for each in value]
        case BaseException():
            return type(value).__name__
        case _:
            return value
