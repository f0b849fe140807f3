"""What must be true during a chaos run, and after it; and the story of what is not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from uuid import UUID

import asyncpg

from shared.contract.ownership import role_of
from shared.db.connecting import connect
from shared.db.invariants import violations
from tests.support.chaos.machine import Machine

_OVER = frozenset({"TERMINATED", "INTERNAL_ERROR", "SKIPPED"})
_OVER_SECONDS = 15
"""A run that has spoken may be called running for some time: an act holds that word for seven seconds."""

_AWAY = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
_OPEN = "SELECT id, status FROM lockkeeper.tasks WHERE status IN ('enqueued', 'processing') ORDER BY created_at LIMIT 5"
_UNENDED_RUNS = """
SELECT task_id, status, run_id FROM lockkeeper.task_attempts
 WHERE cancel_requested_at IS NOT NULL AND cancel_confirmed_at IS NULL AND run_id IS NOT NULL LIMIT 5
"""
_ENDED = """
SELECT count(*) FILTER (WHERE finished_at IS NOT NULL) + count(*) FILTER (WHERE cancel_confirmed_at IS NOT NULL)
       + (SELECT count(*) FROM lockkeeper.tasks WHERE finished_at IS NOT NULL)
  FROM lockkeeper.task_attempts
"""
_WRONG_RESULTS = """
SELECT id AS task_id, input ->> 'number' AS number, result FROM lockkeeper.tasks
 WHERE status = 'completed' AND gather IS NULL AND result ->> 'number' IS DISTINCT FROM input ->> 'number' LIMIT 5
"""
_STORY = """
SELECT 'task' AS what, h.version, h.at, h.verb AS verb, h.status, h.attempt, h.actor, h.reason
  FROM lockkeeper.task_history h WHERE h.task_id = $1 ORDER BY h.version
"""
_ATTEMPTS = """
SELECT id, attempt, status, locked_by, run_id, leased_at, submitted_at, finished_at, cancel_requested_at,
       cancel_confirmed_at, trace_state, error, used_tokens
  FROM lockkeeper.task_attempts WHERE task_id = $1 ORDER BY attempt
"""


class NotRightError(AssertionError):
    """Something that must hold does not."""


class Judge:
    """Looks as a superuser, over a connection that it renews when the server went away."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._connection: asyncpg.Connection | None = None
        self._connecting = asyncio.Lock()
        self.checks = 0

    async def _connected(self) -> asyncpg.Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self._machine.url(), name="chaos-judge")
            return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close(timeout=5)

    async def check(self) -> None:
        """The invariants hold now; while the database is away there is nothing to see."""
        try:
            connection = await self._connected()
            broken = await violations(connection)
        except _AWAY:
            await self._give_up_connection()
            return
        self.checks += 1
        if broken:
            tasks = {row["task_id"] for each in broken for row in each.rows if isinstance(row.get("task_id"), UUID)}
            said = [f"{each.name}: {each.rows}" for each in broken]
            raise NotRightError("\n".join([*said, *[await self.story(task) for task in sorted(tasks)[:3]]]))

    async def _give_up_connection(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def story(self, task_id: UUID) -> str:
        """Everything that happened to a task."""
        connection = await self._connected()
        lines = [f"task {task_id}"]
        lines += [
            f"  {row['version']:3} {row['at']:%H:%M:%S.%f} {row['verb']:12} {row['status']:10} "
            f"attempt {row['attempt']} by {row['actor']} {row['reason'] or ''}"
            for row in await connection.fetch(_STORY, task_id)
        ]
        lines += [f"  {dict(row)}" for row in await connection.fetch(_ATTEMPTS, task_id)]
        return "\n".join(lines)

    async def cut(self, service: str) -> int:
        """End the connections of a service; how many it had."""
        connection = await self._connected()
        rows = await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role_of(service)
        )
        return len(rows)

    async def until_over(self, tasks: list[UUID], seconds: float) -> None:
        """Every task ends and every run that is not wanted is over; then all is as it must be.

        Fails when nothing at all has ended for so many seconds: how fast it goes is the machine's affair.
        """
        connection = await self._connected()
        ended, deadline = -1, 0.0
        while True:
            await self.check()
            left = [*await connection.fetch(_OPEN), *await connection.fetch(_UNENDED_RUNS)]
            if not left:
                break
            before, ended = ended, await connection.fetchval(_ENDED)
            if ended > before:
                deadline = time.monotonic() + seconds
            if time.monotonic() > deadline:
                stories = [await self.story(row[0]) for row in left[:3]]
                raise NotRightError("\n".join([f"nothing ended in {seconds} s of calm, left: {left}", *stories]))
            await asyncio.sleep(0.5)
        await self._check_results(connection, tasks)
        await self._check_runs(connection)

    async def _check_results(self, connection: asyncpg.Connection, tasks: list[UUID]) -> None:
        wrong = await connection.fetch(_WRONG_RESULTS)
        if wrong:
            raise NotRightError(f"a task has the result of another: {wrong}\n{await self.story(wrong[0]['task_id'])}")
        asked = await connection.fetch(
            "SELECT id FROM lockkeeper.tasks WHERE idempotency_key ~ '^[0-9]+$' ORDER BY idempotency_key::int"
        )
        if [row["id"] for row in asked] != tasks:
            raise NotRightError(f"{len(tasks)} tasks were enqueued, and {len(asked)} are there")

    async def _check_runs(self, connection: asyncpg.Connection) -> None:
        """What the runner knows: one run for an attempt at the most, and none that still goes on."""
        double = self._machine.double
        assert double is not None
        known = {row["id"]: row["task_id"] for row in await connection.fetch(
            "SELECT id, task_id FROM lockkeeper.task_attempts")}  # fmt: skip
        deadline = time.monotonic() + _OVER_SECONDS
        while True:
            runs = await asyncio.to_thread(double.runs)
            alive = [run for run in runs if run["state"]["life_cycle_state"] not in _OVER]
            if not alive or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        carried = Counter(_attempt(run) for run in runs)
        twice = [attempt for attempt, number in carried.items() if number > 1]
        if twice:
            raise NotRightError(f"runs were started twice for {twice}\n{await self.story(known[twice[0]])}")
        if alive:
            stories = [await self.story(known[_attempt(run)]) for run in alive[:3]]
            raise NotRightError("\n".join([f"{len(alive)} runs go on for nobody", *stories]))

    async def summary(self, tasks: list[UUID], fates: dict[str, int]) -> str:
        """What the run saw, in a few lines."""
        connection = await self._connected()
        ends = await connection.fetch("SELECT status, count(*) FROM lockkeeper.tasks GROUP BY 1 ORDER BY 1")
        verbs = await connection.fetch("SELECT verb, count(*) FROM lockkeeper.task_events GROUP BY 1 ORDER BY 1")
        attempts = await connection.fetch("SELECT status, count(*) FROM lockkeeper.task_attempts GROUP BY 1 ORDER BY 1")
        lives = sum(replica.lives for replica in self._machine.replicas.values())
        return (
            f"{len(tasks)} tasks, {self.checks} checks, {lives} lives of {len(self._machine.replicas)} replicas; "
            f"ends {_said(ends)}; verbs {_said(verbs)}; attempts {_said(attempts)}; callbacks {fates}"
        )


def _said(rows: list[asyncpg.Record]) -> dict[str, int]:
    return {row[0]: row[1] for row in rows}


def _attempt(run: dict[str, object]) -> UUID:
    parameters = run["job_parameters"]
    assert isinstance(parameters, list)
    return UUID(next(each["value"] for each in parameters if each["name"] == "attempt_id"))
