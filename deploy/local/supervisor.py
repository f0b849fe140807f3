"""Starts the parts in order, keeps them running, and stops them in the opposite order.

Every part has one keeper: wait for what it needs, start it, wait until it is ready, wait until it
ends, start it again with growing pauses. All state is in `Running`; stack.json is written from it
at every change, so it is as current as the supervisor's own knowledge.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from deploy.local import postgres
from deploy.local.folder import LOOPBACK
from deploy.local.parts import Part
from deploy.local.process import Command, last_line, rotate, spawn, stop
from deploy.local.voice import Voice
from deploy.local.wiring import SERVICES, Wiring

PROBE_SECONDS = 0.1
ROTATE_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0
STEADY_SECONDS = 30.0
"""A part that ran this long has recovered: its next restart is a quick one again."""
VITAL_TRIES = 3
MISCONFIGURED = 2
"""The exit status by which a service says that its settings are wrong: no second try helps."""

State = Literal["waiting", "starting", "ready", "done", "failed", "stopped"]


@dataclass(slots=True)
class Running:
    """A part and what is known of it now."""

    part: Part
    url: str | None
    state: State = "waiting"
    process: asyncio.subprocess.Process | None = None
    command: Command | None = None
    restarts: int = 0
    was_ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs one stack from its start until it is told to stop."""

    def __init__(self, wiring: Wiring, parts: Sequence[Part], voice: Voice) -> None:
        self._wiring = wiring
        self._voice = voice
        self._running = {part.name: Running(part, self._url(part)) for part in parts}
        self._stop_requested = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: str | None = None
        self._started_at = datetime.now(UTC)

    async def run(self) -> int:
        """Start everything, wait for a signal, stop everything; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        tasks = [asyncio.create_task(self._keep(running)) for running in self._running.values()]
        tasks += [asyncio.create_task(self._announce()), asyncio.create_task(self._rotate_logs())]
        watch = asyncio.create_task(self._watch(tasks))
        await self._stop_requested.wait()
        watch.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(watch, *tasks, return_exceptions=True)
        self._voice.quiet()
        await self._stop_all()
        self._wiring.folder.remove_stack()
        if self._failure:
            self._voice.say(self._failure)
            return 1
        self._voice.say("stopped")
        return 0

    def _on_signal(self) -> None:
        if self._stop_requested.is_set():
            self._hurry.set()
        self._stop_requested.set()

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """A defect in one of our own tasks ends the stack instead of hiding."""
        for finished in asyncio.as_completed(tasks):
            try:
                await finished
            except Exception as error:
                self._fail(f"the supervisor failed: {error!r}")
                raise

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._stop_requested.set()

    async def _keep(self, running: Running) -> None:
        part = running.part
        for name in (*part.needs, *part.after):
            if name in self._running:
                await self._running[name].was_ready.wait()
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            status = await self._run_once(running)
            if part.probe == "done" and status == 0:
                return
            if time.monotonic() - began > STEADY_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._tell_death(running, status, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            running.restarts += 1

    async def _run_once(self, running: Running) -> int:
        """Start the part, see it become ready, see it end; its exit status."""
        part = running.part
        running.command = part.command(self._wiring)
        self._move(running, "starting")
        running.process = await spawn(running.command, self._wiring.folder.logs / f"{part.name}.log")
        self._move(running, "starting")
        ended = asyncio.ensure_future(running.process.wait())
        ready = asyncio.ensure_future(self._until_ready(running))
        try:
            await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not ended.done():
                self._is_ready(running, "ready")
            status = await ended
        finally:
            ready.cancel()
            ended.cancel()
        running.process = None
        if part.probe == "done" and status == 0:
            self._is_ready(running, "done")
        return status

    def _is_ready(self, running: Running, state: State) -> None:
        self._voice.say(f"{running.part.name} is {state}")
        running.was_ready.set()
        self._move(running, state)

    def _tell_death(self, running: Running, status: int, pause: float) -> None:
        part = running.part
        self._move(running, "failed")
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        words = last_line(self._wiring.folder.logs / f"{part.name}.log")
        hopeless = status == MISCONFIGURED or (part.vital and running.restarts + 1 >= VITAL_TRIES)
        if hopeless and not running.was_ready.is_set():
            self._fail(f"{part.name} does not start, so the stack cannot: {how}: {words}")
            return
        self._voice.say(f"{part.name} {how}; starting it again in {pause:.1f} s" + (f": {words}" if words else ""))

    async def _until_ready(self, running: Running) -> None:
        port = self._wiring.ports.get(running.part.probed, 0)
        while not await self._is_up(running.part, port):  # noqa: ASYNC110 - another process, no event to wait for
            await asyncio.sleep(PROBE_SECONDS)

    async def _is_up(self, part: Part, port: int) -> bool:
        match part.probe:
            case "done":
                return False
            case "postgres":
                return await postgres.accepts_connections(port)
            case "connect":
                return await answers(port, None)
            case "http":
                return await answers(port, part.path)

    async def _announce(self) -> None:
        """Say when the console serves, and when nothing is starting any more."""
        if "console" in self._running:
            for name in ("front_door", "console"):
                if name in self._running:
                    await self._running[name].was_ready.wait()
            self._voice.console_serves(self._wiring.http("front_door"), self._running.values())
        for running in self._running.values():
            await running.was_ready.wait()
        self._voice.all_ready()

    async def _rotate_logs(self) -> None:
        while True:
            for log in self._wiring.folder.logs.glob("*.log"):
                rotate(log)
            await asyncio.sleep(ROTATE_SECONDS)

    async def _stop_all(self) -> None:
        """Stop in waves: first the parts that no other running part needs, Postgres last."""
        alive = {name: running for name, running in self._running.items() if running.process is not None}
        while alive:
            needed = {need for running in alive.values() for need in self._needs(running.part)}
            wave = [running for name, running in alive.items() if name not in needed] or list(alive.values())
            self._voice.say("stopping " + ", ".join(running.part.name for running in wave))
            await asyncio.gather(*(self._stop(running) for running in wave))
            for running in wave:
                del alive[running.part.name]

    def _needs(self, part: Part) -> set[str]:
        """Everything that the part needs, directly or not; work that is done once stays in between."""
        needs = set(part.needs)
        for name in part.needs:
            if name in self._running:
                needs |= self._needs(self._running[name].part)
        return needs

    async def _stop(self, running: Running) -> None:
        if running.process is None or running.command is None:
            return
        stopping = asyncio.create_task(stop(running.process, running.command.stop_signal, running.part.grace_seconds))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
        hurry.cancel()
        if not await stopping:
            self._voice.say(f"{running.part.name} did not stop in {running.part.grace_seconds:.0f} s and was killed")
        running.process = None
        self._move(running, "stopped")

    def _move(self, running: Running, state: State) -> None:
        running.state = state
        self._wiring.folder.write_stack(self._description())
        self._voice.moved(self._running.values())

    def _url(self, part: Part) -> str | None:
        return None if part.probe == "done" else f"{part.scheme}{LOOPBACK}:{self._wiring.ports[part.name]}"

    def _description(self) -> dict[str, Any]:
        """What stack.json says."""
        return {
            "url": self._wiring.http("front_door"),
            "pid": self._wiring.folder.holder() or os.getpid(),
            "supervisor_pid": os.getpid(),
            "started_at": self._started_at.isoformat(),
            "database_url": self._wiring.owner_url,
            "parts": [self._describe(running) for running in self._running.values()],
        }

    def _describe(self, running: Running) -> dict[str, Any]:
        part = running.part
        metrics = f"{self._wiring.http(part.probed)}{part.metrics_path}" if part.metrics_path else None
        return {
            "name": part.name,
            "state": running.state,
            "pid": running.process.pid if running.process else None,
            "url": running.url,
            "metrics_url": metrics,
            "database_url": self._wiring.role_url(part.name) if part.name in SERVICES else None,
            "log": str(self._wiring.folder.logs / f"{part.name}.log"),
            "restarts": running.restarts,
        }


async def answers(port: int, path: str | None) -> bool:
    """Whether something accepts connections on the port and, with a path, answers 2xx there."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                if path is None:
                    return True
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode())
                return b" 2" in (await reader.readline())[:12]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
