"""The pool of warm processes, and the line protocol to one of them.

A process is started niced, in a session of its own, and takes one order at a time. It is replaced when it
dies, when a run in it was cancelled, and after a number of runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from deploy.local.workspace.worker import Ended, Options, Order

logger = logging.getLogger(__name__)

_LINE_LIMIT = 8 * 1024 * 1024
_RESTART_PAUSE_SECONDS = 1.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_PRIVATE_PREFIXES = ("LOCKKEEPER_", "DATABRICKS_", "MLFLOW_", "PG")


class ProcessDied(Exception):  # noqa: N818 - an event in the life of a run, not a fault of the caller
    """The process went away while something was expected of it."""

    def __init__(self, return_code: int) -> None:
        super().__init__(f"the process ended with {return_code}")
        self.return_code = return_code


class WarmProcess:
    """One child that executes runs."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.runs = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """The process has not ended."""
        return self._process.returncode is None

    @classmethod
    async def start(cls, options: Options, environment: Mapping[str, str], log: Path) -> WarmProcess:
        """Start a child; it is not ready yet."""
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "deploy.local.workspace.worker", str(theirs.fileno()), json.dumps(options),
                pass_fds=[theirs.fileno()], env=dict(environment), cwd=options["code_dir"],
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LINE_LIMIT)
        return cls(process, reader, writer)

    async def ready(self) -> None:
        """Wait until the agents' code is imported."""
        await self._line()

    async def begin(self, order: Order) -> None:
        """Hand an order over; returns when the process is about to execute it."""
        self.runs += 1
        self._writer.write(json.dumps(order).encode() + b"\n")
        await self._line()

    async def finish(self) -> Ended:
        """Wait for the end of the order; raises ``ProcessDied`` when the process does not survive it."""
        ended: Ended = json.loads(await self._line())
        return ended

    async def gone(self) -> int:
        """Wait until the process has ended, and end whatever it left behind; its return code."""
        code = await self._process.wait()
        self._writer.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return code

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL for a process that is still there after the grace time."""
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._process.wait()

    def retire(self) -> None:
        """Let the process end by itself: it has no order and gets no other."""
        self._writer.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and whatever it started; it may be gone already."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise ProcessDied(await self._process.wait())
        return line


class ProcessPool:
    """Keeps a number of warm processes alive and lends the ready ones out."""

    def __init__(
        self,
        *,
        size: int,
        runs_per_process: int,
        grace_seconds: float,
        options: Options,
        environment: Mapping[str, str],
        log_dir: Path,
    ) -> None:
        self._size = size
        self._runs_per_process = runs_per_process
        self._grace_seconds = grace_seconds
        self._options = options
        self._environment = environment
        self._log_dir = log_dir
        self._idle: list[WarmProcess] = []
        self._alive: set[WarmProcess] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._waiting: deque[asyncio.Future[WarmProcess]] = deque()

    def ensure_started(self) -> None:
        """Begin to start the processes, once."""
        if not self._keepers:
            self._keepers = [asyncio.create_task(self._keep(slot)) for slot in range(self._size)]

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[WarmProcess]:
        """A ready process for one run; whoever asked first is served first.

        Leaving in peace gives the process back, leaving by an exception (a cancel, a time limit) ends it.
        """
        process = await self._next()
        try:
            yield process
        except BaseException:
            await process.stop(self._grace_seconds)
            raise
        if process.runs >= self._runs_per_process:
            process.retire()
        elif process.is_alive:
            self._offer(process)

    async def close(self) -> None:
        """End every process."""
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(process.stop(self._grace_seconds) for process in self._alive))

    def pids(self) -> list[int]:
        """Process ids of the living processes."""
        return sorted(process.pid for process in self._alive)

    def ready_count(self) -> int:
        """How many processes wait for a run."""
        return len(self._idle)

    async def _next(self) -> WarmProcess:
        self.ensure_started()
        if self._idle:
            return self._idle.pop()
        turn: asyncio.Future[WarmProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._offer(turn.result())
            raise

    def _offer(self, process: WarmProcess) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(process)
                return
        self._idle.append(process)

    async def _keep(self, slot: int) -> None:
        """Keep one place of the pool filled."""
        log = self._log_dir / f"process-{slot}.log"
        while True:
            process = await WarmProcess.start(self._options, self._environment, log)
            self._alive.add(process)
            try:
                await process.ready()
            except ProcessDied as died:
                logger.warning("a warm process did not start (%s); it says why in %s", died, log)
                await asyncio.sleep(_RESTART_PAUSE_SECONDS)
            else:
                self._offer(process)
            await process.gone()
            self._alive.discard(process)
            if process in self._idle:
                self._idle.remove(process)


def child_environment(inherited: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What a run sees: the machine's plain variables and what the workspace gives it, none of the double's own."""
    plain = {name: value for name, value in inherited.items() if not name.startswith(_PRIVATE_PREFIXES)}
    search = [str(_PACKAGE_ROOT), *filter(None, [plain.get("PYTHONPATH")])]
    return {**plain, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(search), **given}
