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
from services.dispatcher.storage import DispatcherStorage, Work
from services.dispatcher.storage.learning import LearningStorage
from shared.contract.channels import Channel
from shared.contract.errors import LockkeeperError, MissingError, RejectedError, TransientError
from shared.contract.ids import uuid7
from shared.contract.rows import LeasedAttempt, UnwantedRun
from shared.contract.stages import CLAIM, SUBMIT
from shared.db.notes import Notes
from shared.runtime import tracing
from shared.runtime.metrics import FENCED_WRITES
from shared.vendors.jobs import Jobs, RunPhase

log = structlog.get_logger()

THROTTLED = frozenset({"deadline", "unreachable"})
SILENT_SECONDS = 20.0
_AT_REST = 3
"""How much rarer cancelling looks when nothing is to be cancelled."""


class Submitter:
    """Hands leased attempts to the runner, a bounded number at a time, and records the answers."""

    def __init__(self, storage: DispatcherStorage, jobs: Jobs, notes: Notes, settings: DispatcherSettings) -> None:
        self._storage = storage
        self._jobs = jobs
        self._notes = notes
        self._threads = asyncio.Semaphore(settings.submit_threads)
        self._calls: dict[UUID, asyncio.Task[None]] = {}
        self._held: dict[UUID, list[LeasedAttempt]] = {}
        self._calling: set[UUID] = set()
        self._strikes: Counter[str] = Counter()
        self.freed = asyncio.Event()

    @property
    def held(self) -> int:
        """Runs that this process has yet to ask for."""
        return len(self._calls)

    def hand_on(self, leased: list[LeasedAttempt]) -> None:
        """Submit these in the background, in order; those of an agent that packs share their runs."""
        for pack in submitting.in_packs(leased):
            key = pack[0].attempt_id
            self._held[key] = pack
            self._calls[key] = asyncio.create_task(self._submit(pack), name=f"submit-{key}")
            self._calls[key].add_done_callback(partial(self._ended, key))
        metrics.LEASES_HELD.set(self.held)

    async def drain(self) -> None:
        """Give back what was not asked for yet; let open calls end, or leave them to another replica."""
        waiting = [key for key in self._calls if key not in self._calling]
        attempts = [each.attempt_id for key in waiting for each in self._held[key]]
        for key in waiting:
            self._calls[key].cancel()
        if waiting:
            await asyncio.gather(*(self._calls[key] for key in waiting), return_exceptions=True)
            tasks = await self._storage.release_attempts([(each, 0.0, "dispatcher_stopped") for each in attempts])
            log.info("release_attempts", tasks=len(tasks), reason="dispatcher_stopped")
            self._notes.send(Channel.TASK_READY)
        calling = list(self._calls.values())
        if calling:
            await asyncio.wait(calling, timeout=3)
        unanswered = [
            each.attempt_id for key, call in self._calls.items() if not call.done() for each in self._held[key]
        ]
        if unanswered:
            await self._storage.expire_leases([(each, 0.0) for each in unanswered])

    def _ended(self, key: UUID, _: asyncio.Task[None]) -> None:
        self._calls.pop(key, None)
        self._held.pop(key, None)
        metrics.LEASES_HELD.set(self.held)
        self.freed.set()

    async def _submit(self, pack: list[LeasedAttempt]) -> None:
        key = pack[0].attempt_id
        async with self._threads:
            self._calling.add(key)
            try:
                for each in await self._stored(pack):
                    await self._ask(each)
            except TransientError as error:
                # The database was away: the lease ends by itself and whoever lives asks again.
                log.warning("submit_unrecorded", attempt_id=str(key), error=error.message)
            except Exception:
                log.exception("submit_failed", attempt_id=str(key))
            finally:
                self._calling.discard(key)

    async def _stored(self, pack: list[LeasedAttempt]) -> list[list[LeasedAttempt]]:
        """The pack with its token in the database, before anybody is asked; whoever has an older token keeps it."""
        if pack[0].tasks_per_run == 1 and pack[0].pack_id is None:
            return [pack]
        packed = await self._storage.pack_attempts([each.attempt_id for each in pack], uuid7())
        return submitting.in_packs(
            each._replace(pack_id=packed[each.attempt_id]) for each in pack if each.attempt_id in packed
        )

    async def _ask(self, pack: list[LeasedAttempt]) -> None:
        started = time.monotonic()
        outcome = "submitted"
        first = pack[0]
        alone = {"task_id": str(first.task_id), "attempt_id": str(first.attempt_id)}
        try:
            run_id = await self._jobs.run_now(
                first.target,
                str(first.pack_id or first.attempt_id),
                alone if first.pack_id is None else {"pack_id": str(first.pack_id)},
            )
        except TransientError as error:
            outcome = "unanswered" if error.reason in THROTTLED else "throttled"
            await self._postponed(pack, error)
        except (RejectedError, MissingError) as error:
            outcome = "refused"
            await self._refused(pack, error)
        else:
            self._strikes.pop(first.agent, None)
            await self._recorded(pack, run_id)
        seconds = time.monotonic() - started
        metrics.SUBMIT_SECONDS.observe(seconds, tracing.exemplar(first.task_id))
        metrics.SUBMITS.labels(first.agent, outcome).inc()
        failure = None if outcome == "submitted" else outcome
        for each in pack:
            tracing.record(SUBMIT, each.task_id, each.attempt_id, seconds=seconds, failure=failure, agent=each.agent)

    async def _recorded(self, pack: list[LeasedAttempt], run_id: int) -> None:
        rows = await self._storage.record_runs([(each.attempt_id, run_id) for each in pack])
        unwanted = any(unwanted for _, unwanted in rows)
        FENCED_WRITES.labels("record_runs", "conflict" if unwanted else "applied" if rows else "missing").inc()
        if unwanted:
            self._notes.send(Channel.CANCEL_REQUESTED, [each.attempt_id for each in pack])
        self._notes.send(Channel.TASK_CHANGED, [each.task_id for each in pack])
        told = {"task_id": str(pack[0].task_id), "attempt": pack[0].attempt, "attempts": len(pack)}
        log.info("record_runs", run_id=run_id, unwanted=unwanted, **told)

    async def _postponed(self, pack: list[LeasedAttempt], error: TransientError) -> None:
        attempts, agent = [each.attempt_id for each in pack], pack[0].agent
        if error.reason in THROTTLED:
            # Nobody knows whether a run was started: the lease stays, and the same token is asked again.
            seconds = submitting.re_ask_seconds(random.random())  # noqa: S311 - jitter
            await self._storage.expire_leases([(each, seconds) for each in attempts])
            log.warning("submit_unanswered", attempt_id=str(attempts[0]), error=error.message)
            return
        self._strikes[agent] += 1
        seconds = submitting.cool_down_seconds(
            error.retry_after_seconds, self._strikes[agent], random.random()  # noqa: S311 - jitter
        )  # fmt: skip
        await self._storage.release_attempts([(each, seconds, error.reason) for each in attempts])
        await self._storage.cool_down_agent(agent, seconds)
        self._notes.send(Channel.TASK_CHANGED, [each.task_id for each in pack])
        log.warning("release_attempts", task_id=str(pack[0].task_id), seconds=round(seconds, 1), error=error.message)

    async def _refused(self, pack: list[LeasedAttempt], error: LockkeeperError) -> None:
        words = {"reason": error.reason, "message": f"the runner refused to start {pack[0].target}: {error.message}"}
        await self._storage.refuse_attempts([(each.attempt_id, words) for each in pack])
        self._notes.send(Channel.TASK_CHANGED, [each.task_id for each in pack])
        log.warning("refuse_attempts", task_id=str(pack[0].task_id), **words)


class LearnLoop:
    """Opens and closes circuit breakers and learns estimates, from how attempts ended."""

    name = "learn"

    def __init__(self, learning: LearningStorage, notes: Notes, settings: DispatcherSettings) -> None:
        self.poll_seconds = settings.poll_seconds
        self.is_due = True
        """Whether the claim loop last saw anything to learn from: an idle dispatcher asks once for both."""
        self._learning = learning
        self._notes = notes

    async def watch(self, attempts: list[UUID]) -> None:
        """Learn from these when they have ended."""
        await self._learning.watch_attempts(attempts)

    async def run_once(self) -> bool:
        """One round over what ended."""
        if not self.is_due:
            return False
        changed = await self._learning.learn()
        for agent, circuit in changed.items():
            state = "closed" if circuit.open_until is None else "open"
            metrics.CIRCUITS.labels(agent, state).inc()
            log.warning("write_circuit", agent=agent, state=state, failed_tasks=len(circuit.failed_tasks))
        if changed:
            self._notes.send(Channel.CONFIG_CHANGED, changed)
        return False


class ClaimLoop:
    """Leases what the limits admit and hands it on."""

    name = "claim_tasks"

    def __init__(
        self,
        storage: DispatcherStorage,
        learn: LearnLoop,
        submitter: Submitter,
        notes: Notes,
        settings: DispatcherSettings,
    ) -> None:
        self.poll_seconds = settings.poll_seconds
        self._storage = storage
        self._learn = learn
        self._submitter = submitter
        self._notes = notes
        self._settings = settings
        self._sampling = Sampling()
        self._named: set[str] = set()
        self._is_at_rest = False
        """Whether the last look found nobody who may be served, so that whom a note names takes nobody's turn."""

    def hear(self, agents: list[str] | None) -> None:
        """Remember whom a note names as having work or room."""
        self._named.update(agents or ())

    async def run_once(self) -> bool:
        """One claim; True when there may be more to lease and room to hold it."""
        settings = self._settings
        named, self._named = sorted(self._named), set()
        self._submitter.freed.clear()
        room = submitting.room_for_claims(
            settings.submit_threads, settings.submit_ahead, self._submitter.held, settings.claim_batch
        )
        if room == 0:
            self._learn.is_due = True
            with suppress(TimeoutError):
                async with asyncio.timeout(self.poll_seconds):
                    await self._submitter.freed.wait()
            return True
        if self._is_at_rest and named and await self._claim(room, Work(plain=named)):
            self._is_at_rest = False
            return True
        work = await self._storage.look_for_work()
        self._learn.is_due = work.has_lessons
        if work.is_due and await self._storage.promote_due(settings.claim_batch):
            return True
        has_leased = bool(work.plain or work.by_policy) and await self._claim(room, work)
        self._is_at_rest = not has_leased
        return has_leased

    async def _claim(self, room: int, work: Work) -> bool:
        """Claim what there is to claim and hand on; whether anything was leased."""
        started = time.monotonic()
        leased = await self._storage.claim_tasks(room, self._settings.submit_lease_seconds, work)
        metrics.CLAIM_SECONDS.observe(time.monotonic() - started)
        if not leased:
            return False
        self._submitter.hand_on(leased)
        self._notes.send(Channel.TASK_CHANGED, [each.task_id for each in leased])
        for each in leased:
            metrics.CLAIMED.labels(each.agent).inc()
            waited = max(0.0, each.waited_seconds)
            metrics.DISPATCH_LATENCY.observe(waited, tracing.exemplar(each.task_id))
            tracing.record(CLAIM, each.task_id, each.attempt_id, seconds=waited, agent=each.agent, number=each.attempt)
        watched = self._sampling.choose(leased, started)
        if watched:
            await self._learn.watch(watched)
        return True


class TakeOverLoop:
    """Finishes what a silent dispatcher left between its claim and its run."""

    name = "take_over_unsubmitted"

    def __init__(self, storage: DispatcherStorage, submitter: Submitter, settings: DispatcherSettings) -> None:
        self.poll_seconds = settings.take_over_poll_seconds
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
        self.poll_seconds = settings.cancel_poll_seconds * _AT_REST
        self._again_seconds = settings.cancel_poll_seconds
        self._storage = storage
        self._jobs = jobs

    async def run_once(self) -> bool:
        """One round over this replica's share."""
        unwanted = await self._storage.take_cancellations(20, self._again_seconds)
        # A note tells of a new one; only runs that were asked to end and have not must be asked about often.
        self.poll_seconds = self._again_seconds * (1 if unwanted else _AT_REST)
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
