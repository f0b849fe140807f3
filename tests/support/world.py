"""A database, two replicas of every service on one clock, and the model of what they should do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar
from uuid import UUID

from shared.db.connecting import connect
from shared.db.invariants import violations
from shared.testing.rows import make_agent
from tests.conftest import TestDatabase
from tests.support.gates import Clock, Gates, Rewrite
from tests.support.hands import Hands
from tests.support.postgres import PostgresServer
from tests.support.task_model import Agent, Model

T = TypeVar("T")

TABLES = (
    "tasks", "task_attempts", "task_events", "token_spending", "attempt_results", "recovered_results", "agents",
    "agent_changes", "replicas", "operator_audit",
    "customers", "reservations", "fair_shares", "spending", "watched_attempts", "agent_estimates", "agent_circuits",
)  # fmt: skip
EMPTY = ";".join((
    # No trigger minds: tasks that have not ended go too.
    "SET session_replication_role = replica", *(f"DELETE FROM lockkeeper.{table}" for table in TABLES),
    "RESET session_replication_role",
))  # fmt: skip

_TASKS = """
SELECT id, status, attempt, attempt_id, attempt_unspent AND status = 'enqueued' AS unspent, spared_attempts AS spared,
       priority, deferred, available_at, lease_expires_at AS lease, locked_by AS holder, reserved_tpm AS reserved
  FROM lockkeeper.tasks
"""
_ATTEMPTS = """
SELECT id, status, attempt, run_id, trace_state IS NOT NULL AS spoken, cancel_requested_at IS NOT NULL AS cancel,
       cancel_confirmed_at IS NOT NULL AS confirmed, used_tokens
  FROM lockkeeper.task_attempts
"""


class World:
    """Used as a context; `do` runs a verb to its end."""

    def __init__(self, server: PostgresServer, name: str, rewrite: Rewrite | None = None) -> None:
        self._server = server
        self._name = name
        self._rewrite = rewrite or {}
        self._runner = asyncio.Runner()
        self.clock = Clock()
        self.hands: dict[str, Hands] = {}
        self.gates: list[Gates] = []
        self.model = Model(self.clock.now)

    def do(self, verb: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(verb)

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self.do(self._open())
        return self

    async def _open(self) -> None:
        await self._server.clone(self._name)
        self.database = TestDatabase(
            self._server, self._name, await connect(self._server.url(database=self._name), name="test-owner")
        )
        self.owner = self.database.owner
        for replica in ("a", "b"):
            gates = Gates(self.clock, self._rewrite)
            self.gates.append(gates)
            self.hands[replica] = await Hands(self.database, replica, gates).__aenter__()

    def __exit__(self, *error: object) -> None:
        self.do(self._close())
        self._runner.__exit__(*error)

    async def _close(self) -> None:
        for hands in self.hands.values():
            await hands.__aexit__()
        await self.owner.close()
        await self._server.drop(self._name)

    def reset(self) -> None:
        """Nothing but two live replicas and two agents: one counts tasks, the other tokens."""
        self.clock.now = Clock().now
        self.model = Model(self.clock.now)
        self.do(self._reset())

    async def _reset(self) -> None:
        await self.owner.execute(EMPTY)
        for agent in (Agent("counter", most=2, lease_seconds=100), Agent("weigher", tpm=30, lease_seconds=200)):
            self.model.agents[agent.name] = agent
            await make_agent(
                self.owner, agent.name, max_concurrent_tasks=agent.most, max_tpm=agent.tpm, default_tokens=10,
                lease_seconds=agent.lease_seconds,
            )  # fmt: skip
        for hands in self.hands.values():
            await hands.live()

    def move_clock(self, seconds: float) -> None:
        self.clock.move(seconds)
        self.model.now = self.clock.now

    def adopt_backoff(self, task_id: UUID) -> None:
        """Take over when a task may be tried again, which is random within its bounds."""
        task = self.model.tasks[task_id]
        at = self.do(self.owner.fetchval("SELECT available_at FROM lockkeeper.tasks WHERE id = $1", task_id))
        seconds = (at - self.clock.now).total_seconds()
        most = min(600.0, 2.0 ** max(task.number, 1))
        assert most / 2 <= seconds <= most, f"a backoff of {seconds} s after attempt {task.number}"
        task.available_at = at

    def compare(self) -> None:
        """Every row is as the model says."""
        rows, attempts = self.do(self._look())
        model = {task.id: task.row() for task in self.model.tasks.values()}
        assert rows == model, _differences(rows, model)
        said = {attempt.id: attempt.row() for _, attempt in self.model.all()}
        assert attempts == said, _differences(attempts, said)

    def check_invariants(self) -> None:
        """None is violated; those about the event log judge every moment since the reset."""
        assert self.do(violations(self.owner)) == []

    async def _look(self) -> tuple[dict[UUID, Any], dict[UUID, Any]]:
        rows = {row["id"]: dict(row) for row in await self.owner.fetch(_TASKS)}
        attempts = {row["id"]: dict(row) for row in await self.owner.fetch(_ATTEMPTS)}
        for row in (*rows.values(), *attempts.values()):
            del row["id"]
        return rows, attempts

    def check_nothing_is_stranded(self) -> None:
        """A day later every task that is still processing is somebody's: a dispatcher's or the sweeper's."""
        self.move_clock(86_400)
        processing = {
            task.current.id for task in self.model.tasks.values() if task.status == "processing" and task.current
        }
        overdue = set(self.do(self.hands["a"].overdue()))
        orphans = {each.attempt_id for each in self.do(self.hands["a"].take_over())}
        assert processing <= overdue | orphans, f"nobody looks after {processing - overdue - orphans}"


def _differences(found: dict[UUID, Any], said: dict[UUID, Any]) -> str:
    lines = [
        f"{row}.{name}: {found.get(row, {}).get(name)!r}, the model says {said.get(row, {}).get(name)!r}"
        for row in found.keys() | said.keys()
        for name in found.get(row, {}).keys() | said.get(row, {}).keys()
        if found.get(row, {}).get(name) != said.get(row, {}).get(name)
    ]
    return "\n".join(lines)
