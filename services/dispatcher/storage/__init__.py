"""The dispatcher's statements as methods of the same names."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from services.dispatcher.storage.admission import PolicyClaim
from shared.contract.ids import uuid7
from shared.contract.rows import LeasedAttempt, UnwantedRun
from shared.db.fenced import write_fenced
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.dispatcher")
_Claim = Callable[[Sequence[str], int, int, float], Awaitable[tuple[list[LeasedAttempt], int]]]
"""What was leased for the first few of these agents that may start some, and how far in the line they stand."""
_AGENTS_AT_LEAST = 8
_TASKS_OF_AN_AGENT = 5
"""How many tasks an agent that may start some is expected to give to a large claim."""


class Work(NamedTuple):
    """What a dispatcher sees before it claims."""

    is_due: bool = False
    """Tasks wait for their promotion."""
    plain: Sequence[str] = ()
    """Agents that have tasks to claim, in the order of their first."""
    by_policy: Sequence[str] = ()
    """The same of agents whose claims need a decision by policy."""
    has_lessons: bool = False
    """Attempts are watched, or costs reserved."""


class DispatcherStorage:
    """Claim, hand on, give back; every write after the claim is fenced by the attempt's id."""

    def __init__(self, database: Database, replica: str) -> None:
        self._database = database
        self._replica = replica

    async def claim_tasks(self, limit: int, lease_seconds: float, work: Work | None = None) -> list[LeasedAttempt]:
        """Lease up to `limit` tasks within every agent's limits, in short transactions.

        `work` says which agents have any, where the caller has looked already.
        """
        if work is None:
            work = await self.look_for_work()
        leased: list[LeasedAttempt] = []
        if work.by_policy:
            # Where there are agents of both kinds, neither may take every turn.
            fair = limit // 2 + limit % 2 * random.getrandbits(1) if work.plain else limit
            leased += await self._along(work.by_policy, fair, lease_seconds, self._claim_by_policy)
        return leased + await self._along(work.plain, limit - len(leased), lease_seconds, self._claim_plain)

    async def _along(self, line: Sequence[str], limit: int, lease_seconds: float, claim: _Claim) -> list[LeasedAttempt]:
        """Claim for a few agents at a time: their locks are held no longer than their own tasks need."""
        few = max(_AGENTS_AT_LEAST, limit // _TASKS_OF_AN_AGENT)
        leased: list[LeasedAttempt] = []
        while line and len(leased) < limit:
            found, served = await claim(line, few, limit - len(leased), lease_seconds)
            leased += found
            line = line[served:]
        return leased

    async def _claim_plain(
        self, agents: Sequence[str], few: int, limit: int, lease_seconds: float
    ) -> tuple[list[LeasedAttempt], int]:
        rows = await self._database.fetch(
            _SQL["claim_tasks"].sql, agents, few, limit, self._replica, uuid7(), lease_seconds
        )
        served = rows[0]["served"]
        return ([] if rows[0]["task_id"] is None else [LeasedAttempt._make(row[:-1]) for row in rows]), served

    async def _claim_by_policy(
        self, agents: Sequence[str], few: int, limit: int, lease_seconds: float
    ) -> tuple[list[LeasedAttempt], int]:
        async def work(connection: Connection) -> tuple[list[LeasedAttempt], int]:
            locked = {row["name"]: row for row in await connection.fetch(_SQL["lock_agents"].sql, agents, few)}
            # Later statements: their snapshots see every claim that committed before we had the locks.
            rows = await PolicyClaim(connection, self._replica, lease_seconds).lease(list(locked), limit)
            options: dict[str, Sequence[Any]] = {
                name: (row["tasks_per_run"], None, row["has_breaker"], row["learn_estimates"])
                for name, row in locked.items()
            }
            served = max(row["place"] for row in locked.values()) if len(locked) == few else len(agents)
            return [LeasedAttempt(*row, *options[row["agent"]]) for row in rows], served

        return await self._database.atomically(work)

    async def look_for_work(self) -> Work:
        """What there is to do, in one statement."""
        return Work(*(await self._database.fetch(_SQL["look_for_work"].sql))[0])

    async def promote_due(self, limit: int) -> int:
        """Let tasks whose time has come be claimed; returns how many."""
        return int(await self._database.fetchval(_SQL["promote_due"].sql, limit))

    async def pack_attempts(self, attempts: Sequence[UUID], pack_id: UUID) -> dict[UUID, UUID]:
        """Let attempts that this replica holds share a run; each one's pack, which may be an older one."""
        rows = await self._fenced("pack_attempts", attempts, list(attempts), pack_id, self._replica)
        return {row["attempt_id"]: row["pack_id"] for row in rows}

    async def record_runs(self, runs: Sequence[tuple[UUID, int]]) -> list[tuple[UUID, bool]]:
        """Fill in the runs of attempts; returns the tasks, and whether the run is unwanted by now."""
        attempts = [attempt for attempt, _ in runs]
        rows = await self._fenced("record_runs", attempts, attempts, [run for _, run in runs])
        return [(row["task_id"], row["unwanted"]) for row in rows]

    async def release_attempts(self, released: Sequence[tuple[UUID, float, str]]) -> list[UUID]:
        """Put back what this replica holds, without spending attempts: (attempt, seconds to wait, reason)."""
        attempts, delays, reasons = zip(*released, strict=True)
        rows = await self._fenced(
            "release_attempts", attempts, list(attempts), list(delays), list(reasons), self._replica
        )
        return [row["task_id"] for row in rows]

    async def refuse_attempts(self, refused: Sequence[tuple[UUID, dict[str, str]]]) -> list[UUID]:
        """End tasks that this replica holds and the runner will never take: (attempt, {reason, message})."""
        attempts = [attempt for attempt, _ in refused]
        rows = await self._fenced("refuse_attempts", attempts, attempts, [error for _, error in refused], self._replica)
        return [row["task_id"] for row in rows]

    async def expire_leases(self, unanswered: Sequence[tuple[UUID, float]]) -> None:
        """Let any replica ask again after so many seconds."""
        attempts = [attempt for attempt, _ in unanswered]
        await self._fenced("expire_leases", attempts, attempts, [seconds for _, seconds in unanswered], self._replica)

    async def take_over_unsubmitted(
        self, limit: int, lease_seconds: float, silent_seconds: float
    ) -> list[LeasedAttempt]:
        """Lease what silent dispatchers left between the claim and the run."""
        rows = await self._database.fetch(
            _SQL["take_over_unsubmitted"].sql, limit, self._replica, lease_seconds, silent_seconds
        )
        return [LeasedAttempt(**{**row, "target": row["target"] or ""}) for row in rows]

    async def cool_down_agent(self, agent: str, seconds: float) -> None:
        """No claim for this agent for so many seconds."""
        await self._database.execute(_SQL["cool_down_agent"].sql, agent, seconds)

    async def take_cancellations(self, limit: int, again_seconds: float) -> list[UnwantedRun]:
        """Runs that must end, this replica's share of them."""
        rows = await self._database.fetch(_SQL["take_cancellations"].sql, limit, again_seconds)
        return [UnwantedRun(**row) for row in rows]

    async def confirm_cancellation(self, attempts: Sequence[UUID]) -> None:
        """The runner said that these runs are over."""
        await self._database.execute(_SQL["confirm_cancellation"].sql, list(attempts))

    async def _fenced(self, name: str, attempts: Sequence[UUID], *args: Any) -> list[Any]:
        return await write_fenced(self._database, _SQL[name], attempts, *args)
