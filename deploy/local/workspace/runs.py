"""Carries runs from accepted to ended: the job's queue, a free process, the agent's code, the end.

QUEUED while the job's ``max_concurrent_runs`` are out, PENDING while no process is free, RUNNING in a warm
process, TERMINATING after a cancel. One coroutine carries one run; a cancel is a cancellation of that
coroutine. Every change is stored in the same step of the event loop that makes it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from deploy.local.workspace import run_record
from deploy.local.workspace.faults import RUN, FaultBook, FaultRule, Kind
from deploy.local.workspace.operation import ApiError, JsonObject
from deploy.local.workspace.orders import order_for
from deploy.local.workspace.processes import ProcessDied, ProcessPool
from deploy.local.workspace.run_record import PENDING, QUEUED, RUNNING, TERMINATING, End, Run, now_ms
from deploy.local.workspace.store import Store
from deploy.local.workspace.worker import Ended

logger = logging.getLogger(__name__)

_QUEUE_SECONDS = 48 * 3600.0


class JobSlots:
    """How many runs of each job are out; the waiting ones follow in the order they came."""

    def __init__(self) -> None:
        self._out: Counter[int] = Counter()
        self._waiting: defaultdict[int, deque[asyncio.Event]] = defaultdict(deque)

    def is_full(self, job_id: int, limit: int) -> bool:
        """Another run of this job would have to wait."""
        return self._out[job_id] >= limit or bool(self._waiting[job_id])

    @asynccontextmanager
    async def held(self, job_id: int, limit: int) -> AsyncIterator[None]:
        """Wait for a place and keep it."""
        line = self._waiting[job_id]
        turn = asyncio.Event()
        line.append(turn)
        try:
            while line[0] is not turn or self._out[job_id] >= limit:
                await turn.wait()
                turn.clear()
        finally:
            line.remove(turn)
            self._call_next(job_id)
        self._out[job_id] += 1
        try:
            yield
        finally:
            self._out[job_id] -= 1
            self._call_next(job_id)

    def _call_next(self, job_id: int) -> None:
        if line := self._waiting[job_id]:
            line[0].set()


class RunEngine:
    """Every run that has not ended."""

    def __init__(
        self,
        *,
        store: Store,
        faults: FaultBook,
        pool: ProcessPool,
        resolve_volume: Callable[[str], Path],
        code_dir: Path,
        log_dir: Path,
        start_seconds: float,
    ) -> None:
        self._store = store
        self._faults = faults
        self._pool = pool
        self._resolve_volume = resolve_volume
        self._code_dir = code_dir
        self._log_dir = log_dir
        self._start_seconds = start_seconds
        self._slots = JobSlots()
        self._active: dict[int, tuple[Run, asyncio.Task[None]]] = {}

    def start(self) -> None:
        """Take up what the last stop left: runs that had begun end as cut off, the others go on waiting."""
        for run in self._store.active_runs():
            if run.life_cycle in {QUEUED, PENDING} and not run.cancel_requested:
                self.accept(run)
            else:
                run.end(run_record.CANCELED if run.cancel_requested else run_record.CUT_OFF)
                self._store.save_run(run)

    async def close(self) -> None:
        """Stop. Runs that had begun end as cut off; the others go on waiting after the next start."""
        left = list(self._active.values())
        for _, carrier in left:
            carrier.cancel()
        await asyncio.gather(*(carrier for _, carrier in left), return_exceptions=True)
        for run, _ in left:
            if run.life_cycle not in {QUEUED, PENDING} and not run.is_terminal:
                run.end(run_record.CUT_OFF)
                self._store.save_run(run)

    def accept(self, run: Run) -> None:
        """Carry this stored run to its end."""
        self._active[run.run_id] = (run, asyncio.create_task(self._carry(run)))

    def cancel(self, run_id: int) -> None:
        """Ask a run to stop; it ends a moment later, and an ended run stays as it is."""
        run, carrier = self._active.get(run_id, (None, None))
        if run is None or carrier is None or run.cancel_requested:
            return
        run.cancel_requested = True
        self._change(run, TERMINATING)
        carrier.cancel()

    def active_of(self, job_id: int) -> list[int]:
        """Ids of the runs of a job that have not ended."""
        return [run.run_id for run, _ in self._active.values() if run.job_id == job_id]

    def counts(self) -> dict[str, int]:
        """Active runs by life-cycle state."""
        return dict(Counter(run.life_cycle for run, _ in self._active.values()))

    # -- the way of one run

    async def _carry(self, run: Run) -> None:
        try:
            end = await self._live(run)
        except asyncio.CancelledError:
            if not run.cancel_requested:
                raise
            end = run_record.CANCELED
        except TimeoutError:
            end = run_record.TIMED_OUT
        except ApiError as error:
            end = End(run_record.INTERNAL_ERROR, "FAILED", "INVALID_RUN_CONFIGURATION", error.message)
        except Exception as error:
            logger.exception("run %d could not be carried to its end", run.run_id)
            end = End(run_record.INTERNAL_ERROR, "FAILED", "INTERNAL_ERROR", str(error))
        run.end(end)
        self._store.save_run(run)
        del self._active[run.run_id]

    async def _live(self, run: Run) -> End:
        rule = self._strike(run, "hold", "end")
        if rule is not None and rule.when == "before" and (end := await self._mislead(run, rule)):
            return end
        if self._slots.is_full(run.job_id, run.max_concurrent_runs):
            if not run.queues:
                return run_record.TOO_MANY
            self._change(run, QUEUED)
        async with self._slots.held(run.job_id, run.max_concurrent_runs):
            run.left_queue_time = now_ms()
            self._change(run, PENDING)
            if self._start_seconds:
                await asyncio.sleep(self._start_seconds)
            end = await self._execute(run)
            if rule is not None and rule.when == "after":
                end = await self._mislead(run, rule) or end
            return end

    async def _execute(self, run: Run) -> End:
        if silence := self._strike(run, "die_silently"):
            self._begin(run)
            await asyncio.sleep(silence.seconds or 0)
            return run_record.SUCCESS
        order = order_for(run, self._resolve_volume, self._code_dir, self.log_of(run))
        while True:
            async with self._pool.lent() as process:
                try:
                    await process.begin(order)
                except ProcessDied:
                    continue
                self._begin(run)
                timer = None
                if killer := self._strike(run, "kill"):
                    timer = asyncio.get_running_loop().call_later(killer.seconds or 0, process.signal, signal.SIGKILL)
                try:
                    async with asyncio.timeout(run.timeout_seconds or None):
                        return _end(run, await process.finish())
                except ProcessDied as died:
                    return _death(died)
                finally:
                    if timer is not None:
                        timer.cancel()

    async def _mislead(self, run: Run, rule: FaultRule) -> End | None:
        """Show the state a fault rule asks for: as the end, or until the rule's time is over."""
        if rule.kind == "end":
            if rule.seconds:
                await asyncio.sleep(rule.seconds)
            code = rule.code or ("SUCCESS" if rule.result == "SUCCESS" else "INTERNAL_ERROR")
            stopped = rule.result in {"CANCELED", "TIMEDOUT"}
            return End(rule.state, rule.result, code, rule.message, cancelled_or_timed_out=stopped)
        self._change(run, rule.state)
        await self._faults.outlast(rule, _QUEUE_SECONDS)
        return None

    def log_of(self, run: Run) -> Path:
        """Where the output of a run is kept."""
        return self._log_dir / f"{run.task_run_id}.log"

    def _begin(self, run: Run) -> None:
        run.executing_time = now_ms()
        self._change(run, RUNNING)

    def _change(self, run: Run, life_cycle: str) -> None:
        run.life_cycle = life_cycle
        self._store.save_run(run)

    def _strike(self, run: Run, *kinds: Kind) -> FaultRule | None:
        if not self._faults:
            return None
        facts: JsonObject = {
            "job_id": run.job_id,
            "run_id": run.run_id,
            "run_name": run.run_name,
            "number_in_job": run.number_in_job,
            "parameters": run.parameters,
        }
        return self._faults.take(RUN, kinds, facts)


def _end(run: Run, ended: Ended) -> End:
    if ended["error"] is None:
        return run_record.SUCCESS
    # As on serverless: the run says only that its task failed, the traceback is in the task run's output.
    return End(
        run_record.INTERNAL_ERROR,
        "FAILED",
        "RUN_EXECUTION_ERROR",
        f"Task {run.task['task_key']} failed with message: Workload failed, see run output for details.",
        task_life_cycle=run_record.TERMINATED,
        error=ended["error"],
        error_trace=ended["error_trace"],
    )


def _death(died: ProcessDied) -> End:
    if died.return_code == 0:
        return run_record.SUCCESS
    message = f"The Python process exited unexpectedly with code {died.return_code}."
    return End(run_record.INTERNAL_ERROR, "FAILED", "DRIVER_ERROR", message, error=message)
