"""One replica of every service as tests use it: the real storage classes, with values of tests' own choosing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Self, cast
from uuid import UUID

from services.callback_receiver.messages import Body, Kind, Report, Settled
from services.callback_receiver.storage import CallbackStorage
from services.console.routes.actions import Operator, Wish
from services.console.storage.agents import SETTINGS, AgentStorage
from services.console.storage.customers import CustomerStorage
from services.console.storage.operating import OperatingStorage
from services.dispatcher.storage import DispatcherStorage
from services.dispatcher.storage.admission import PolicyClaim
from services.sweeper.policy import Finding, Judgement
from services.sweeper.storage import SweeperStorage
from shared.client import Gather, NewTask, enqueue, enqueue_family
from shared.contract.callback import FailureBody, HeartbeatBody, ResultBody, Usage
from shared.contract.rows import LeasedAttempt, UnwantedRun
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.db.statements import load
from tests.conftest import TestDatabase
from tests.support.gates import GatedDatabase, Gates

LEASE_SECONDS = 30.0
_REPLICA = load("shared.runtime")
_AGENT = load("shared.agent_kit")


def _usage(tokens: int | None) -> list[Usage]:
    return [] if tokens is None else [Usage(model="m", input_tokens=tokens)]


class Hands:
    """The verbs of the system, each through the storage class of the service that owns it."""

    def __init__(self, database: TestDatabase, replica: str, gates: Gates) -> None:
        self.replica = replica
        self.gates = gates
        self._databases = {
            service: GatedDatabase(database.url(service), service, gates)
            for service in ("dispatcher", "sweeper", "callback_receiver", "console", "document_agent")
        }
        self.dispatcher = DispatcherStorage(self._databases["dispatcher"], replica)
        self.sweeper = SweeperStorage(self._databases["sweeper"], replica)
        self.receiver = CallbackStorage(self._databases["callback_receiver"])
        self.agents = AgentStorage(self._databases["console"])
        self._customers = CustomerStorage(self._databases["console"])
        # Notes that nobody opens gather and are never sent: no test here waits for one.
        self._notes = Notes(self._databases["console"])
        self._operator = Operator(OperatingStorage(self._databases["console"]), self._notes)

    async def __aenter__(self) -> Self:
        for each in self._databases.values():
            await each.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._databases.values():
            await each.close()

    async def live(self, *, stopped: bool = False) -> None:
        """Say that this replica lives, or that it ended."""
        await self._databases["dispatcher"].execute(_REPLICA["beat_replica"].sql, self.replica, "dispatcher", {})
        if stopped:
            await self._databases["dispatcher"].execute(_REPLICA["farewell_replica"].sql, self.replica)

    # The dispatcher's.

    async def claim(self, limit: int = 10) -> list[LeasedAttempt]:
        return await self.dispatcher.claim_tasks(limit, LEASE_SECONDS)

    async def claim_in_the_way(self) -> list[LeasedAttempt]:
        """A claim whose transaction keeps all others waiting at the guard of limits, with what they saw so far."""
        async with self._databases["dispatcher"].transaction() as connection:
            await connection.fetchval("SELECT pg_advisory_xact_lock(4951, 1)")
            return await DispatcherStorage(cast("Database", connection), self.replica).claim_tasks(10, LEASE_SECONDS)

    async def claim_of(self, agent: str) -> list[tuple[UUID, int]]:
        """The claim of one agent by policy, as if nobody else were after it: tasks and attempts."""

        async def work(connection: Any) -> list[Any]:
            return await PolicyClaim(connection, self.replica, LEASE_SECONDS).lease([agent], 10)

        rows = await self._databases["dispatcher"].atomically(work)
        return [(row["task_id"], row["attempt"]) for row in rows]

    async def record_runs(self, runs: Sequence[tuple[UUID, int]]) -> list[bool]:
        """Whether each of these runs is unwanted by now."""
        return [unwanted for _, unwanted in await self.dispatcher.record_runs(runs)]

    async def release(self, attempts: Iterable[UUID], seconds: float = 0.0) -> set[UUID]:
        return set(await self.dispatcher.release_attempts([(each, seconds, "throttled") for each in attempts]))

    async def refuse(self, attempts: Iterable[UUID]) -> set[UUID]:
        words = {"reason": "bad_job", "message": "there is no such job"}
        return set(await self.dispatcher.refuse_attempts([(each, words) for each in attempts]))

    async def expire(self, attempts: Iterable[UUID], seconds: float) -> None:
        await self.dispatcher.expire_leases([(each, seconds) for each in attempts])

    async def take_over(self) -> list[LeasedAttempt]:
        return await self.dispatcher.take_over_unsubmitted(100, LEASE_SECONDS, 1e7)

    async def take_cancellations(self) -> list[UnwantedRun]:
        return await self.dispatcher.take_cancellations(100, 0)

    # The receiver's.

    async def settle(self, kind: Kind, attempts: Iterable[UUID], body: Body, result: bytes | None) -> list[Settled]:
        """What became of each report; one whose task is busy is left out."""
        reports = [Report(each, kind, body, result) for each in attempts]
        return [each for each in await self.receiver.settle(reports) if each is not None]

    async def succeed(
        self, attempts: Iterable[UUID], tokens: int | None = None, *, stored: bool = False
    ) -> list[Settled]:
        body = ResultBody(result_stored=stored, usage=_usage(tokens))
        return await self.settle(Kind.RESULT, attempts, body, None if stored else b'{"n":1}')

    async def fail(self, attempts: Iterable[UUID], *, retryable: bool, tokens: int | None = None) -> list[Settled]:
        body = FailureBody(reason="no_text", message="no text", retryable=retryable, usage=_usage(tokens))
        return await self.settle(Kind.FAILURE, attempts, body, None)

    async def beat(self, attempts: Iterable[UUID]) -> list[Settled]:
        return await self.settle(Kind.HEARTBEAT, attempts, HeartbeatBody(pages_done=1), None)

    async def settle_recovered(self) -> list[Settled]:
        return (await self.receiver.settle_recovered(100))[0]

    async def gather(self) -> list[UUID]:
        """One look at all families."""
        return await self.receiver.gather_families(100)

    async def store_result(self, attempt: UUID) -> None:
        """What the agent leaves before it calls back."""
        report = ResultBody(result_stored=True).model_dump(mode="json", exclude={"result"})
        await self._databases["document_agent"].execute(
            _AGENT["store_result"].sql, attempt, {"stored": True}, None, None, report
        )

    # The sweeper's.

    async def overdue(self) -> dict[UUID, bool]:
        """Attempts whose lease is over, and whether their result is there."""
        return {each.attempt_id: each.has_result for each in await self.sweeper.list_overdue(100)}

    async def extend(self, attempts: Iterable[UUID], seconds: float = 60) -> int:
        return await self.sweeper.extend_leases([(each, seconds) for each in attempts])

    async def lose(self, attempts: Iterable[UUID], finding: Finding = Finding.LOST) -> set[UUID]:
        judgement = Judgement(finding, "run_ended_silently", "the run ended without a word")
        rows = await self.sweeper.lose_attempts([(each, judgement) for each in attempts])
        return {row["task_id"] for row in rows}

    async def sweep(self, finding: Finding = Finding.LOST) -> tuple[int, int]:
        """One whole round over runs that are all over: results found, and tasks moved."""
        overdue = await self.overdue()
        found = [each for each, has_result in overdue.items() if has_result]
        lost = [each for each, has_result in overdue.items() if not has_result]
        if found:
            await self.sweeper.record_recovered(found)
            await self.extend(found)
        return len(found), len(await self.lose(lost, finding)) if lost else 0

    # The console's, and the client's.

    async def enqueue(self, agent: str = "parser", **task: Any) -> UUID:
        async with self._databases["console"].transaction() as connection:
            return await enqueue(connection, agent=agent, **task)

    async def enqueue_family(self, gather: Gather, children: int, agent: str = "parser") -> tuple[UUID, list[UUID]]:
        async with self._databases["console"].transaction() as connection:
            return await enqueue_family(
                connection, NewTask(agent=agent, gather=gather), [NewTask(agent=agent) for _ in range(children)]
            )

    async def act(self, action: Any, task: UUID, *, priority: int | None = None) -> UUID:
        return await self._operator.act_on_one(Wish(action, "ada", priority=priority), task)

    async def set_agent(self, name: str = "parser", *, lock: bool = True, **settings: Any) -> None:
        """Write an agent's next version; without `lock` there is one statement less to put into an order."""

        async def work(connection: Any) -> None:
            if lock:
                await self.agents.lock_agent(connection, name)
            row = await self.agents.read_agent(connection, name)
            changed = {each: row[each] for each in SETTINGS} | settings
            await self.agents.change_agent(connection, name, changed, "ada")

        await self.agents.database.atomically(work)

    async def set_customer(self, name: str, daily_budget: Decimal | None) -> None:
        """Give a customer its first budget."""

        async def work(connection: Any) -> None:
            await self._customers.write_customer(connection, name, (daily_budget, None), "ada", 0)

        await self._customers.database.atomically(work)
