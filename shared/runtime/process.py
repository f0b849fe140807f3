"""One process of the system from start to end.

`run(service, compose)` reads the settings, opens what the service needs, starts its loops and its
HTTP app, and ends in one order, written once: stop claiming → let running rounds end within the grace
time → give leases back → close HTTP, listener, notes and pool. SIGTERM and SIGINT start the end;
a second one hurries it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
import uvloop
from pydantic_settings import BaseSettings
from starlette.types import ASGIApp

from shared.contract.channels import Channel
from shared.contract.errors import LockkeeperError, MisconfiguredError, TransientError
from shared.db.credentials import RotatingPassword, Token
from shared.db.deployment import Deployment, branch_of
from shared.db.listener import Handler, Listener
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.runtime import metrics, tracing
from shared.runtime.copies import Unadopted
from shared.runtime.http import HttpServer, ops_app
from shared.runtime.logs import configure_logs
from shared.runtime.loops import BudgetSpentError, Loop, LoopRunner
from shared.runtime.replica import ReplicaHeartbeat
from shared.runtime.settings import RuntimeSettings, read_settings
from shared.vendors.lakebase import mint_password

log = structlog.get_logger()

HUNG_SECONDS = 120.0
HOT_SERVICES = frozenset({"dispatcher", "callback_receiver", "sweeper"})
"""Their statements run for every task, so that their plans are pinned."""

HARMLESS = frozenset({"console"})
"""On a copy of the database it may be used as always: what it writes stays in there."""


def _password_for(instance: str | None) -> RotatingPassword | None:
    """A rotating credential when a Lakebase instance is named; else the address holds the password."""
    if instance is None:
        return None

    async def mint() -> Token:
        return Token(*await mint_password(instance))

    return RotatingPassword(mint)


class Renewal:
    """A loop that renews the database credential ahead of its end, so that no login waits for it."""

    name = "renew_credential"

    def __init__(self, password: RotatingPassword) -> None:
        self._password = password
        self.poll_seconds = 1.0

    async def run_once(self) -> bool:
        """Renew it when it is time, and come back when it is time again."""
        try:
            await self._password.renew()
        except LockkeeperError as error:
            # The platform's refusals end too; a process that gave up over them would not come back with it.
            raise TransientError(f"no database credential: {error.message}", reason="no_credential") from error
        self.poll_seconds = min(60.0, max(0.5, self._password.seconds_to_renewal))
        return False


async def _nothing() -> None:
    """Most services hold no lease of their own."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a composition root hands to the runtime."""

    loops: Sequence[Loop] = ()
    app: ASGIApp | None = None
    hears: Mapping[Channel, Handler] = field(default_factory=dict)
    wakes: Mapping[Channel, Sequence[Loop]] = field(default_factory=dict)
    """Loops that a note on the channel wakes; a handler in `hears` gets the ids besides."""
    drain: Callable[[], Awaitable[None]] = _nothing
    """Gives back what this process holds, after its loops have stopped."""
    http_grace_seconds: float = 5
    """How long requests that still run may take once the process ends."""


class Process:
    """What a composition root may use: settings, pool, notes, the replica's name and its listener's state."""

    def __init__(self, service: str, settings: RuntimeSettings) -> None:
        self.service = service
        self.settings = settings
        self.replica = settings.replica
        self.password = _password_for(settings.database_instance)
        self.database = Database(
            settings.database_url,
            self.password,
            name=f"lockkeeper-{service}",
            size=settings.database_connections,
            pinned_plans=service in HOT_SERVICES,
            life_seconds=settings.database_connection_seconds,
            branch=branch_of(settings.database_instance),
        )
        self.deployment = Deployment(self.database)
        self.notes = Notes(self.database)
        self.listener: Listener | None = None
        self.draining = False

    @property
    def is_live(self) -> bool:
        """Whether notes are proved to arrive; False means that only polling works."""
        return self.listener is not None and self.listener.is_live


OwnSettings = TypeVar("OwnSettings", bound=BaseSettings)
Compose = Callable[[Process, OwnSettings], Awaitable[Service]]


def run(service: str, own: type[OwnSettings], compose: Compose[OwnSettings]) -> None:
    """Run a service until it is told to stop, then exit with a code that says how it went."""
    try:
        settings, own_settings = read_settings(service, RuntimeSettings, own)
        configure_logs(service, settings.replica, settings.log_level)
        tracing.configure(service, settings.replica)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_run(Process(service, settings), own_settings, compose))
    except MisconfiguredError as error:
        print(f"{service}: {error.message}", file=sys.stderr, flush=True)  # noqa: T201 - before logs exist
        code = 2
    # Everything that had to be said is written and closed. The interpreter's own farewell would wait for
    # threads of libraries that sit in a call to somewhere else, past any grace time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _run(process: Process, own: OwnSettings, compose: Compose[OwnSettings]) -> int:
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    await process.database.open()
    parts = await compose(process, own)
    body = _Body(process, parts, stop)
    try:
        return await body.live()
    finally:
        await body.end()


class _Body:
    """The running parts of one process, and the order in which they end."""

    def __init__(self, process: Process, parts: Service, stop: asyncio.Event) -> None:
        settings = process.settings
        self._process = process
        self._parts = parts
        self._stop = stop
        self._heartbeat = ReplicaHeartbeat(process.database, process.service, process.replica, self._info)
        self._heartbeat.poll_seconds = settings.heartbeat_seconds
        own: list[Loop] = [self._heartbeat]
        if process.password is not None:
            own.append(Renewal(process.password))
        budget = settings.failure_budget
        self._runners = {id(loop): LoopRunner(loop, failure_budget=budget) for loop in own}
        for loop in parts.loops:
            may_run = process.deployment.is_adopted
            self._runners[id(loop)] = LoopRunner(loop, failure_budget=budget, may_run=may_run)
        self._ops = HttpServer(
            ops_app(self._troubles, self._unready, self._refresh), settings.ops_host, settings.ops_port
        )
        self._http = (
            None if parts.app is None
            else HttpServer(
                parts.app if process.service in HARMLESS else Unadopted(parts.app, process.deployment),
                settings.host, settings.port,
                grace_seconds=min(parts.http_grace_seconds, settings.grace_seconds),
            )
        )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []

    async def live(self) -> int:
        """Start everything and return an exit code when told to stop, or when a loop gave up."""
        process = self._process
        handlers = self._handlers()
        if handlers:
            process.listener = Listener(
                process.settings.database_url, process.password, handlers,
                name=f"lockkeeper-{process.service}-listen",
                life_seconds=process.settings.database_connection_seconds,
            )  # fmt: skip
            await process.listener.open()
        await process.notes.open()
        await self._ops.open()
        if self._http is not None:
            await self._http.open()
        self._tasks = [asyncio.create_task(runner.run(), name=runner.loop.name) for runner in self._runners.values()]
        lag = asyncio.create_task(_watch_lag(), name="lag")
        self._tasks.append(lag)
        log.info("started", port=self._http.port if self._http else None, ops_port=self._ops.port)
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        done, _ = await asyncio.wait([stopped, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            error = task.exception()
            if isinstance(error, BudgetSpentError):
                log.error("gave_up", error=str(error))
            else:
                log.error("loop_ended", loop=task.get_name(), error=repr(error))
            stopped.cancel()
            return 1
        return 0

    async def end(self) -> None:
        """Drain: every step is bounded, and a step that fails does not keep the next from running."""
        process = self._process
        process.draining = True
        log.info("draining")
        for runner in self._runners.values():
            runner.stop()
        rounds = [task for task in self._tasks if task.get_name() != "lag"]
        if rounds:
            await asyncio.wait(rounds, timeout=process.settings.grace_seconds * 0.6)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._step("give_leases_back", self._parts.drain())
        if self._http is not None:
            await self._step("close_http", self._http.close())
        if process.listener is not None:
            await self._step("close_listener", process.listener.close())
        await self._step("farewell", self._heartbeat.farewell())
        await self._step("close_notes", process.notes.close())
        await self._step("close_ops", self._ops.close())
        await self._step("close_pool", self._close_pool())
        log.info("stopped")

    async def _close_pool(self) -> None:
        await asyncio.gather(self._process.database.close(), asyncio.to_thread(tracing.close))

    async def _step(self, name: str, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(max(2.0, self._process.settings.grace_seconds * 0.3)):
                await work
        except (LockkeeperError, TimeoutError) as error:
            log.warning("drain_step_failed", step=name, error=str(error) or type(error).__name__)
        except Exception:
            log.exception("drain_step_failed", step=name)

    def _handlers(self) -> dict[Channel, Handler]:
        handlers: dict[Channel, Handler] = dict(self._parts.hears)
        for channel, loops in self._parts.wakes.items():
            runners = [self._runners[id(loop)] for loop in loops]
            handlers[channel] = _wake_all(runners, handlers.get(channel))
        return handlers

    def _troubles(self) -> list[str]:
        return [
            f"{runner.loop.name} has not turned for {runner.seconds_since_turn:.0f} s"
            for runner in self._runners.values()
            if runner.seconds_since_turn > max(HUNG_SECONDS, runner.loop.poll_seconds * 3)
        ]

    def _unready(self) -> list[str]:
        reasons = []
        if self._process.draining:
            reasons.append("draining")
        if not self._heartbeat.is_fresh:
            reasons.append("the database was not reached lately")
        return reasons

    def _info(self) -> dict[str, object]:
        listener = self._process.listener
        return {
            "ops_port": self._ops.port,
            "port": self._http.port if self._http else None,
            "listener": None if listener is None else ("live" if listener.is_live else "polling"),
        }

    def _refresh(self) -> None:
        process = self._process
        metrics.POOL_TIMEOUTS.set(process.database.waits_timed_out)
        metrics.DATABASE_UP.set(self._heartbeat.is_fresh)
        metrics.ADOPTED.set(process.deployment.is_known_adopted)
        if process.password is not None:
            metrics.CREDENTIAL_SECONDS.set(process.password.seconds_left)
            metrics.CREDENTIAL_AGE.set(process.password.age_seconds)
            metrics.CREDENTIAL_RENEWAL.set(process.password.seconds_to_renewal)
            metrics.CREDENTIAL_FAILURES.set(process.password.failures)
            metrics.CREDENTIAL_REFUSALS.set(process.password.refusals)
        if process.listener is not None:
            metrics.LISTENER_CONNECTED.set(process.listener.is_live)
            metrics.LISTENER_PROOF_AGE.set(process.listener.seconds_since_proof)


def _wake_all(runners: Sequence[LoopRunner], then: Handler | None) -> Handler:
    def handle(ids: list[str] | None) -> None:
        for runner in runners:
            runner.wake()
        if then is not None:
            then(ids)

    return handle


async def _watch_lag() -> None:
    while True:
        due = time.monotonic() + 0.5
        await asyncio.sleep(0.5)
        metrics.EVENT_LOOP_LAG.observe(max(0.0, time.monotonic() - due))
