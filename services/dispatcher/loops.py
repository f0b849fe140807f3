"""When the dispatcher does what: claim and hand on, take over, cancel."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from uuid import UUID

import structlog

from services.dispatcher import metrics
from services.dispatcher.policy import submitting
from services.dispatcher.policy.learning import Sampling
from services.dispatcher.settings import DispatcherSettings
from services.dispatcher.storage import DispatcherStorage
from services.dispatcher.storage.learning import LearningStorage
from shared.contract.channels import Channel
from shared.contract.errors import LockkeeperError, MissingError, RejectedError, TransientError
from shared.contract.rows import LeasedAttempt, UnwantedRun
from shared.contract.stages import CLAIM, SUBMIT
from shared.db.notes import Notes
from shared.runtime import tracing
from shared.runtime.metrics import FENCED_WRITES
from shared.vendors.jobs import Jobs, RunPhase

log = structlog.get_logger()

THROTTLED = frozenset({"deadline", "unreachable"})
SILENT_SECONDS = 20.0


class Submitter:
    """Hands leased attempts to the runner, a bounded number at a time, and records the answers."""

    def __init__(self, storage: DispatcherStorage, jobs: Jobs, notes: Notes, settings: DispatcherSettings) -> None:
        self._storage = storage
        self._jobs = jobs
        self._notes = notes
        self._threads = asyncio.Semaphore(settings.submit_threads)
        self._calls: dict[UUID, asyncio.Task[None]] = {}
        self._calling: set[UUID] = set()
        self._strikes: Counter[str] = Counter()
        self.freed = asyncio.Event()

    @property
    def held(self) -> int:
        """Attempts leased by this process whose run is not yet known."""
        return len(self._calls)

    def hand_on(self, leased: list[LeasedAttempt]) -> None:
        """Submit these in the background, in order."""
        for each in leased:
            task = asyncio.create_task(self._submit(each), name=f"submit-{each.attempt_id}")
            self._calls[each.attempt_id] = task
            task.add_done_callback(partial(self._ended, each.attempt_id))
        metrics.LEASES_HELD.set(self.held)

    async def drain(self) -> None:
        """Give back what was not asked for yet; let open calls end, or leave them to another replica."""
        waiting = [attempt for attempt in self._calls if attempt not in self._calling]
        for attempt in waiting:
            self._calls[attempt].cancel()
        if waiting:
            await asyncio.gather(*(self._calls[each] for each in waiting), return_exceptions=True)
            tasks = await self._storage.release_attempts([(each, 0.0, "dispatcher_stopped") for each in waiting])
            log.info("release_attempts", tasks=len(tasks), reason="dispatcher_stopped")
            self._notes.send(Channel.TASK_READY)
        calling = list(self._calls.values())
        if calling:
            await asyncio.wait(calling, timeout=3)
        unanswered = [attempt for attempt, call in self._calls.items() if not call.done()]
        if unanswered:
            await self._storage.expire_leases([(each, 0.0) for each in unanswered])

    def _ended(self, attempt: UUID, _: asyncio.Task[None]) -> None:
        self._calls.pop(attempt, None)
        metrics.LEASES_HELD.set(self.held)
        self.freed.set()

    async def _submit(self, leased: LeasedAttempt) -> None:
        async with self._threads:
            self._calling.add(leased.attempt_id)
            try:
                await self._ask(leased)
            except TransientError as error:
                # The database was away: the lease ends by itself and whoever lives asks again.
                log.warning("submit_unrecorded", attempt_id=str(leased.attempt_id), error=error.message)
            except Exception:
                log.exception("submit_failed", attempt_id=str(leased.attempt_id))
            finally:
                self._calling.discard(leased.attempt_id)

    async def _ask(self, leased: LeasedAttempt) -> None:
        started = time.monotonic()
        outcome = "submitted"
        try:
            run_id = await self._jobs.run_now(
                leased.target,
                str(leased.attempt_id),
                {"task_id": str(leased.task_id), "attempt_id": str(leased.attempt_id)},
            )
        except TransientError as error:
            outcome = "unanswered" if error.reason in THROTTLED else "throttled"
            await self._postponed(leased, error)
        except (RejectedError, MissingError) as error:
            outcome = "refused"
            await self._refused(leased, error)
        else:
            self._strikes.pop(leased.agent, None)
            await self._recorded(leased, run_id)
        seconds = time.monotonic() - started
        metrics.SUBMIT_SECONDS.observe(seconds, tracing.exemplar(leased.task_id))
        metrics.SUBMITS.labels(leased.agent, outcome).inc()
        failure = None if outcome == "submitted" else outcome
        tracing.record(SUBMIT, leased.task_id, leased.attempt_id, seconds=seconds, failure=failure, agent=leased.agent)

    async def _recorded(self, leased: LeasedAttempt, run_id: int) -> None:
        rows = await self._storage.record_runs([(leased.attempt_id, run_id)])
        unwanted = any(unwanted for _, unwanted in rows)
        FENCED_WRITES.labels("record_runs", "conflict" if unwanted else "applied" if rows else "missing").inc()
        if unwanted:
            self._notes.send(Channel.CANCEL_REQUESTED, [leased.attempt_id])
        self._notes.send(Channel.TASK_CHANGED, [leased.task_id])
        log.info("record_runs", task_id=str(leased.task_id), attempt=leased.attempt, run_id=run_id, unwanted=unwanted)

    async def _postponed(self, leased: LeasedAttempt, error: TransientError) -> None:
        if error.reason in THROTTLED:
            # Nobody knows whether a run was started: the lease stays, and the same token is asked again.
            await self._storage.expire_leases([(leased.attempt_id, submitting.re_ask_seconds(random.random()))])  # noqa: S311
            log.warning("submit_unanswered", attempt_id=str(leased.attempt_id), error=error.message)
            return
        self._strikes[leased.agent] += 1
        seconds = submitting.cool_down_seconds(
            error.retry_after_seconds, self._strikes[leased.agent], random.random()  # noqa: S311 - jitter
        )  # fmt: skip
        await self._storage.release_attempts([(leased.attempt_id, seconds, error.reason)])
        await self._storage.cool_down_agent(leased.agent, seconds)
        self._notes.send(Channel.TASK_CHANGED, [leased.task_id])
        log.warning("release_attempts", task_id=str(leased.task_id), seconds=round(seconds, 1), error=error.message)

    async def _refused(self, leased: LeasedAttempt, error: LockkeeperError) -> None:
        words = {"reason": error.reason, "message": f"the runner refused to start {leased.target}: {error.message}"}
        await self._storage.refuse_attempts([(leased.attempt_id, words)])
        self._notes.send(Channel.TASK_CHANGED, [leased.task_id])
        log.warning("refuse_attempts", task_id=str(leased.task_id), **words)


class ClaimLoop:
    """Leases what the limits admit and hands it on."""

    name = "claim_tasks"

    def __init__(
        self,
        storage: DispatcherStorage,
        learning: LearningStorage,
        submitter: Submitter,
        notes: Notes,
        settings: DispatcherSettings,
    ) -> None:
        self.poll_seconds = settings.poll_seconds
        self._storage = storage
        self._learning = learning
        self._submitter = submitter
        self._notes = notes
        self._settings = settings
        self._sampling = Sampling()

    async def run_once(self) -> bool:
        """One claim; True when there may be more to lease and room to hold it."""
        settings = self._settings
        self._submitter.freed.clear()
        room = submitting.room_for_claims(
            settings.submit_threads, settings.submit_ahead, self._submitter.held, settings.claim_batch
        )
        if room == 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.poll_seconds):
                    await self._submitter.freed.wait()
            return True
        await self._storage.promote_due(settings.claim_batch)
        started = time.monotonic()
        leased = await self._storage.claim_tasks(room, settings.submit_lease_seconds)
        metrics.CLAIM_SECONDS.observe(time.monotonic() - started)
        for each in leased:
            metrics.CLAIMED.labels(each.agent).inc()
            waited = max(0.0, each.waited_seconds)
            metrics.DISPATCH_LATENCY.observe(waited, tracing.exemplar(each.task_id))
            tracing.record(CLAIM, each.task_id, each.attempt_id, seconds=waited, agent=each.agent, number=each.attempt)
        if leased:
            self._submitter.hand_on(leased)
            self._notes.send(Channel.TASK_CHANGED, [each.task_id for each in leased])
            watched = self._sampling.choose(leased, started)
            if watched:
                await self._learning.watch_attempts(watched)
        return bool(leased)


class LearnLoop:
    """Opens and closes circuit breakers and learns estimates, from how attempts ended."""

    name = "learn"

    def __init__(self, learning: LearningStorage, notes: Notes, settings: DispatcherSettings) -> None:
        self.poll_seconds = settings.poll_seconds
        self._learning = learning
        self._notes = notes

    async def run_once(self) -> bool:
        """One round over what ended."""
        changed = await self._learning.learn()
        for agent, circuit in changed.items():
            state = "closed" if circuit.open_until is None else "open"
            metrics.CIRCUITS.labels(agent, state).inc()
            log.warning("write_circuit", agent=agent, state=state, failed_tasks=len(circuit.failed_tasks))
        if changed:
            self._notes.send(Channel.CONFIG_CHANGED, changed)
        return False


class TakeOverLoop:
    """Finishes what a silent dispatcher left between its claim and its run."""

    name = "take_over_unsubmitted"

    def __init__(self, storage: DispatcherStorage, submitter: Submitter, settings: DispatcherSettings) -> None:
        self.poll_seconds = settings.poll_seconds * 2
        self._storage = storage
        self._submitter = submitter
        self._settings = settings

    async def run_once(self) -> bool:
        """Take over at most as many as there are threads."""
        leased = await self._storage.take_over_unsubmitted(
            self._settings.submit_threads, self._settings.submit_lease_seconds, SILENT_SECONDS
        )
        if leased:
            metrics.TAKEN_OVER.inc(len(leased))
            log.info("take_over_unsubmitted", attempts=len(leased))
            self._submitter.hand_on(leased)
        return False


class CancelLoop:
    """Ends the runs of cancelled and superseded attempts, and asks until the runner says that they are over."""

    name = "take_cancellations"

    def __init__(self, storage: DispatcherStorage, jobs: Jobs, settings: DispatcherSettings) -> None:
        self.poll_seconds = settings.cancel_poll_seconds
        self._storage = storage
        self._jobs = jobs

    async def run_once(self) -> bool:
        """One round over this replica's share."""
        unwanted = await self._storage.take_cancellations(20, self.poll_seconds)
        over = await asyncio.gather(*(self._is_over(each) for each in unwanted))
        confirmed = [run.attempt_id for run, ended in zip(unwanted, over, strict=True) if ended]
        if confirmed:
            await self._storage.confirm_cancellation(confirmed)
            metrics.RUNS_CANCELLED.inc(len(confirmed))
            log.info("confirm_cancellation", attempts=len(confirmed))
        return len(unwanted) == 20

    async def _is_over(self, run: UnwantedRun) -> bool:
        if run.run_id is None:
            return True
        try:
            if (await self._jobs.state(run.run_id)).phase is RunPhase.ENDED:
                return True
            await self._jobs.cancel(run.run_id)
        except MissingError:
            return True
        except (TransientError, RejectedError) as error:
            log.warning("cancel_run_postponed", run_id=run.run_id, error=error.message)
        return False
