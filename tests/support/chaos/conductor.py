"""Carries out the acts of a seed on a machine, judges every second, and ends by itself."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID

import asyncpg
import httpx

from services.console.policy.operating import Action
from services.console.routes.actions import Chosen, Operator, Wish
from services.console.storage.agents import SETTINGS, AgentStorage
from services.console.storage.operating import OperatingStorage
from shared.client import NewTask, enqueue_many
from shared.contract.errors import TransientError
from shared.contract.task_filter import TaskFilter
from shared.db.connecting import connect
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.runtime.http.problems import StateConflictError
from tests.support.chaos.acts import AGENTS, Act, Given, schedule
from tests.support.chaos.judge import Judge, NotRightError
from tests.support.chaos.machine import Machine
from tests.support.chaos.postman import Postman

LEASE_SECONDS = 5
CALM_SECONDS = 120
_LIMITS: dict[str, Given] = {
    "counted": {"max_concurrent_tasks": 3},
    "weighed": {"max_tpm": 20_000},
    "both": {"max_concurrent_tasks": 4, "max_tpm": 30_000},
    "free": {},
}
_AWAY = (TransientError, httpx.TransportError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


class Conductor:
    """Used as a context; `perform` is the whole run."""

    def __init__(self, machine: Machine, seed: int, seconds: float) -> None:
        self.seed = seed
        self.seconds = seconds
        self.acts = schedule(seed, seconds)
        self.machine = machine
        self.tasks: list[UUID] = []
        self.done: deque[str] = deque(maxlen=40)
        self.faults: list[str] = []
        self._started = 0.0
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.machine.prepare()
        self.judge = Judge(self.machine)
        self.postman = Postman(self.seed, self.machine.receivers())
        await self.postman.open()
        self.database = Database(self.machine.url("console"), name="chaos-console", size=4)
        await self.database.open()
        self._agents = AgentStorage(self.database)
        # Never opened: what is decided by people is found by polling here, as after a lost note.
        self._http = httpx.AsyncClient(timeout=60, trust_env=False)
        self._operator = Operator(OperatingStorage(self.database), Notes(self.database))
        owner = await connect(self.machine.url(), name="chaos-stage")
        for agent in AGENTS:
            await owner.execute(
                "INSERT INTO lockkeeper.agents (name, target, lease_seconds, default_tokens, expected_seconds, "
                "max_run_seconds, max_concurrent_tasks, max_tpm) VALUES ($1, $1, $2, 2000, 5, 20, $3, $4)",
                agent, LEASE_SECONDS, _LIMITS[agent].get("max_concurrent_tasks"), _LIMITS[agent].get("max_tpm"),
            )  # fmt: skip
        await owner.close()
        await asyncio.to_thread(self.machine.start, self.postman.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        for act in self._under_way:
            act.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self.postman.close()
        await self.database.close()
        await self._http.aclose()
        await self.judge.close()

    async def perform(self) -> str:
        """Every act at its time, then calm until all is over; a line about what there was. Raises NotRightError."""
        self._started = time.monotonic()
        try:
            judging = asyncio.create_task(self._judge_every_second())
            try:
                for act in self.acts:
                    await asyncio.sleep(max(0.0, self._started + act.at - time.monotonic()))
                    self._begin(act)
                    if judging.done():
                        break
            finally:
                judging.cancel()
                await asyncio.gather(judging, return_exceptions=True)
            if not judging.cancelled():
                await judging
            await self._calm()
            return await self.judge.summary(self.tasks, self.postman.fates)
        except NotRightError as error:
            said = "\n".join(self.done)
            raise NotRightError(f"seed {self.seed}, {self.seconds} s\n{error}\n\nthe last acts:\n{said}") from error

    async def _judge_every_second(self) -> None:
        while True:
            await self.judge.check()
            self._check_processes()
            await asyncio.sleep(1)

    def _check_processes(self) -> None:
        faults = [*self.machine.ended_by_themselves(), *self.postman.faults, *self.faults]
        if faults:
            raise NotRightError("\n".join(faults))

    def _begin(self, act: Act) -> None:
        work: Callable[[Given], Awaitable[str | None]] = getattr(self, f"_{act.kind}")

        async def carry_out() -> None:
            try:
                outcome = await work(act.given)
            except _AWAY as error:
                outcome = f"not done: {type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 - whatever it is, the run is not right
                outcome = repr(error)
                self.faults.append(f"{act}: {error!r}")
            self.done.append(f"{act}  -> {outcome or 'done'} at {time.monotonic() - self._started:.2f} s")

        task = asyncio.create_task(carry_out())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _calm(self) -> None:
        """Everybody lives, nothing more goes wrong, limits are wide: then every task ends."""
        await asyncio.gather(*self._under_way)
        self.postman.faithful = True
        assert self.machine.double is not None
        await asyncio.to_thread(self.machine.double.mend)
        for agent in AGENTS:
            await self._set_agent(agent, paused=False, max_concurrent_tasks=None, max_tpm=None)
        await self.judge.until_over(self.tasks, CALM_SECONDS)
        self._check_processes()

    # -- the acts

    async def _enqueue(self, given: Given) -> str:
        start = len(self.tasks)
        self.tasks += [UUID(int=0)] * len(given["plays"])
        later = datetime.now(UTC) + timedelta(seconds=given["delay"])
        family = (
            []
            if given["gather"] is None
            else [
                NewTask(
                    agent=given["agent"], gather=given["gather"], idempotency_key=f"family-{start}", input={"number": 0}
                )
            ]
        )
        tasks = [
            NewTask(
                agent=given["agent"], input={"number": start + number, "plays": plays}, priority=given["priority"],
                max_attempts=given["max_attempts"], estimated_tokens=given["tokens"],
                idempotency_key=f"{start + number}",
                available_at=later if given["delay"] else None,
            )
            for number, plays in enumerate(given["plays"])
        ]  # fmt: skip
        while not self.tasks[start].int:
            # The client was not told whether the first try came through: the keys make it harmless.
            try:
                for _ in range(1 + given["twice"]):
                    async with self.database.transaction() as connection:
                        parents = await enqueue_many(connection, family)
                        children = [replace(each, parent_task_id=parent) for parent in parents for each in tasks]
                        ids = await enqueue_many(connection, children or tasks)
                    self.tasks[start : start + len(ids)] = ids
            except _AWAY:
                await asyncio.sleep(0.2)
        return f"tasks {start} to {start + len(tasks) - 1}"

    async def _kill(self, given: Given) -> None:
        replica = self.machine.replicas[given["replica"]]
        await asyncio.to_thread(replica.end, signal.Signals[given["signal"]])
        await asyncio.sleep(given["back_after"])
        if replica.process is None:
            replica.start(renamed=given["renamed"], shift=given["shift"])

    async def _freeze(self, given: Given) -> None:
        replica = self.machine.replicas[given["replica"]]
        replica.signal(signal.SIGSTOP)
        # A run's end does not wait for the longest freeze.
        left = self._started + self.seconds - time.monotonic()
        await asyncio.sleep(min(given["seconds"], max(0.0, left)))
        replica.signal(signal.SIGCONT)

    async def _restart_postgres(self, given: Given) -> None:
        await self.machine.restart_postgres(signal.Signals[given["signal"]], given["back_after"])

    async def _cut(self, given: Given) -> str:
        return f"{await self.judge.cut(given['service'])} connections"

    async def _break_call(self, given: Given) -> None:
        await self._break_run(given)

    async def _break_run(self, given: Given) -> None:
        assert self.machine.double is not None
        answer = await self._http.post(f"{self.machine.double.url}/faults", json=given)
        assert answer.status_code == 201, answer.text

    async def _limits(self, given: Given) -> None:
        await self._set_agent(given["agent"], **{name: given[name] for name in given if name != "agent"})

    async def _pause(self, given: Given) -> None:
        await self._set_agent(given["agent"], paused=True)
        await asyncio.sleep(given["seconds"])
        await self._set_agent(given["agent"], paused=False)

    async def _set_agent(self, name: str, **settings: Any) -> None:
        async def work(connection: Any) -> None:
            await self._agents.lock_agent(connection, name)
            row = await self._agents.read_agent(connection, name)
            changed = {each: row[each] for each in SETTINGS} | settings
            await self._agents.change_agent(connection, name, changed, "chaos")

        await self._until_done(lambda: self.database.atomically(work))

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except _AWAY:
                await asyncio.sleep(0.2)

    async def _cancel(self, given: Given) -> str:
        return await self._operate(given)

    async def _retry(self, given: Given) -> str:
        return await self._operate(given)

    async def _reprocess(self, given: Given) -> str:
        return await self._operate(given)

    async def _reprioritise(self, given: Given) -> str:
        return await self._operate(given)

    async def _operate(self, given: Given) -> str:
        number = min(int(given["pick"] * len(self.tasks)), len(self.tasks) - 1)
        while not self.tasks[number].int:
            # Its client is still at it.
            await asyncio.sleep(0.05)
        action: Action = given["action"]
        try:
            shown = await self._operator.act_on_one(Wish(action, "chaos", given["priority"]), self.tasks[number])
        except StateConflictError as error:
            return f"task {number}: {error.message}"
        return f"task {number}, shown as {shown}"

    async def _bulk(self, given: Given) -> str:
        chosen = TaskFilter.parse([("agent", given["agent"])])
        wish = Wish(given["action"], "chaos", given["priority"])
        matched, changed = await self._operator.act_on_many(wish, Chosen(chosen))
        return f"{changed} of {matched}"
