"""When the sweeper does what."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import structlog

from services.sweeper import metrics
from services.sweeper.policy import LOSSES, Answer, Finding, Judgement, judge
from services.sweeper.settings import SweeperSettings
from services.sweeper.storage import SweeperStorage
from shared.contract.channels import Channel
from shared.contract.errors import MissingError, RejectedError, TransientError
from shared.contract.rows import OverdueAttempt
from shared.db.notes import Notes
from shared.runtime.metrics import FENCED_WRITES
from shared.vendors.jobs import Jobs, RunPhase, RunVerdict

log = structlog.get_logger()

REPLICA_SECONDS = 20.0
"""A replica that has been silent for so long counts as gone."""
_FORGOTTEN_AT_ONCE = 10_000
_THE_OLDEST = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
_REMOVED_FROM = ("tasks", "task_attempts", "task_events", "attempt_results")


class SweepLoop:
    """Asks about every expired lease before anything is started again."""

    name = "sweep"

    def __init__(self, storage: SweeperStorage, jobs: Jobs, notes: Notes, settings: SweeperSettings) -> None:
        self.poll_seconds = settings.poll_seconds
        self._storage = storage
        self._jobs = jobs
        self._notes = notes
        self._settings = settings

    async def run_once(self) -> bool:
        """One batch; True when it was full."""
        held = await self._storage.take_duty("sweep", self._settings.duty_seconds)
        metrics.DUTY_HELD.labels("sweep").set(held)
        if not held:
            return False
        overdue = await self._storage.list_overdue(self._settings.batch)
        # Attempts that share a run share the question.
        runs = {each.run_id for each in overdue if not each.has_result}
        answers = dict(zip(runs, await asyncio.gather(*map(self._ask, runs)), strict=True))
        judgements = [judge(each, answers.get(each.run_id)) for each in overdue]
        await self._apply(overdue, judgements)
        metrics.LAST_SWEEP.set_to_current_time()
        return len(overdue) == self._settings.batch

    async def _ask(self, run_id: int) -> Answer | None:
        try:
            state = await self._jobs.state(run_id)
            message = state.message
            if state.phase is RunPhase.ENDED and state.verdict is not RunVerdict.SUCCEEDED and state.task_run_id:
                message = await self._jobs.error_output(state.task_run_id) or message
        except MissingError:
            return Answer(phase=None)
        except (TransientError, RejectedError) as error:
            log.warning("ask_runner", run_id=run_id, error=error.message)
            return None
        return Answer(state.phase.value, state.verdict.value, state.code, message)

    async def _apply(self, overdue: list[OverdueAttempt], judgements: list[Judgement]) -> None:
        pairs = list(zip(overdue, judgements, strict=True))
        for attempt, judgement in pairs:
            metrics.LEASES_EXPIRED.labels(attempt.agent, judgement.finding.value).inc()
            log.info("sweep", task_id=str(attempt.task_id), attempt=attempt.attempt, run_id=attempt.run_id,
                     finding=judgement.finding.value, reason=judgement.reason)  # fmt: skip
        found = [attempt.attempt_id for attempt, judgement in pairs if judgement.finding is Finding.RESULT_FOUND]
        kept = [
            (attempt.attempt_id, self._lease(attempt, judgement))
            for attempt, judgement in pairs
            if judgement.finding not in LOSSES
        ]
        lost = [(attempt.attempt_id, judgement) for attempt, judgement in pairs if judgement.finding in LOSSES]
        if found:
            await self._storage.record_recovered(found)
            self._notes.send(Channel.RESULT_RECOVERED, found)
        if kept:
            await self._storage.extend_leases(kept)
        if lost:
            await self._lose(lost)

    def _lease(self, attempt: OverdueAttempt, judgement: Judgement) -> float:
        match judgement.finding:
            case Finding.RESULT_FOUND:
                return self._settings.result_seconds
            case Finding.STILL_RUNNING:
                return float(attempt.lease_seconds)
            case _:
                return self._settings.doubt_seconds

    async def _lose(self, lost: list[tuple[UUID, Judgement]]) -> None:
        moved = await self._storage.lose_attempts(lost)
        FENCED_WRITES.labels("lose_attempts", "applied").inc(len(moved))
        FENCED_WRITES.labels("lose_attempts", "no_op").inc(len(lost) - len(moved))
        if not moved:
            return
        self._notes.send(Channel.TASK_CHANGED, [row["task_id"] for row in moved])
        self._notes.send(Channel.TASK_READY, {row["agent"] for row in moved})
        self._notes.send(Channel.ATTEMPT_SETTLED, [row["attempt_id"] for row in moved])
        if any(row["finding"] == Finding.TOO_LONG.value for row in moved):
            self._notes.send(Channel.CANCEL_REQUESTED)


class ForgetLoop:
    """Remove what nobody will ask for again."""

    name = "forget"

    def __init__(self, storage: SweeperStorage, settings: SweeperSettings) -> None:
        self.poll_seconds = settings.forget_seconds
        self._storage = storage
        self._settings = settings

    async def run_once(self) -> bool:
        """One batch; True when it was full."""
        if not await self._storage.take_duty("forget", self._settings.duty_seconds):
            return False
        return await self._storage.forget_spending(_FORGOTTEN_AT_ONCE) == _FORGOTTEN_AT_ONCE


class RemoveLoop:
    """Removes finished tasks that were kept long enough, a batch at a time, and rests as long as a batch took."""

    name = "remove_tasks"

    def __init__(self, storage: SweeperStorage, settings: SweeperSettings, keep_days: int) -> None:
        self.poll_seconds = settings.remove_seconds
        self._storage = storage
        self._settings = settings
        self._keep_days = keep_days
        self._after = _THE_OLDEST

    async def run_once(self) -> bool:
        """One batch. Never True: the next one comes after the rest, or with the next walk."""
        started = time.monotonic()
        held = await self._storage.take_duty("remove", self._settings.duty_seconds)
        batch = await self._storage.remove_tasks(self._keep_days, self._after) if held else None
        if batch is None or batch["looked_at"] == 0:
            self._after = _THE_OLDEST
            self.poll_seconds = self._settings.remove_seconds
            return False
        for table in _REMOVED_FROM:
            metrics.REMOVED.labels(table).inc(batch[table])
        if batch["tasks"]:
            log.info("remove_tasks", tasks=batch["tasks"], up_to=batch["last_created_at"].isoformat())
        self._after = (batch["last_created_at"], batch["last_id"])
        self.poll_seconds = time.monotonic() - started
        return False


class GaugesLoop:
    """Reads the table-derived metrics; only the duty's holder exports them, so that a sum is not a multiple."""

    name = "read_queue_state"

    def __init__(self, storage: SweeperStorage, settings: SweeperSettings) -> None:
        self.poll_seconds = settings.gauges_seconds
        self._storage = storage
        self._settings = settings

    async def run_once(self) -> bool:
        """One reading, or none while another replica holds the duty."""
        held = await self._storage.take_duty("gauges", self._settings.gauges_seconds * 3)
        metrics.DUTY_HELD.labels("gauges").set(held)
        if not held:
            metrics.forget_tables()
            return False
        self._show_agents(await self._storage.read_queue_state())
        owed = await self._storage.read_duty_state()
        metrics.LEASES_OVERDUE.set(owed["leases_overdue"])
        metrics.RESULTS_WAITING.set(owed["results_waiting"])
        metrics.COSTS_PENDING.set(owed["costs_pending"])
        metrics.COST_PENDING_AGE.set(owed["cost_pending_seconds"])
        replicas = await self._storage.read_replicas(REPLICA_SECONDS)
        metrics.REPLICAS.clear()
        for row in replicas:
            metrics.REPLICAS.labels(row["service"], row["hears"]).set(row["replicas"])
        metrics.SAMPLED.set_to_current_time()
        return False

    @staticmethod
    def _show_agents(rows: list[Any]) -> None:
        for gauge in metrics.OF_AGENTS:
            gauge.clear()
        metrics.DISPATCHABLE.set(sum(row["dispatchable"] for row in rows))
        for row in rows:
            agent = row["agent"]
            metrics.TASKS.labels("enqueued", agent).set(row["waiting"] + row["deferred"])
            metrics.TASKS.labels("processing", agent).set(row["running"])
            metrics.OLDEST_WAITING.labels(agent).set(row["oldest_waiting_seconds"])
            metrics.AGENT_DISPATCHABLE.labels(agent).set(row["dispatchable"])
            metrics.PAUSED.labels(agent).set(row["paused"])
            limits = {"concurrency": ("max_concurrent_tasks", "slots"), "tokens": ("max_tpm", "tokens_left")}
            for limit, (most, left) in limits.items():
                if row[most] is not None:
                    metrics.LIMIT.labels(agent, limit).set(row[most])
                    metrics.HEADROOM.labels(agent, limit).set(row[left])


class DatabaseGaugesLoop:
    """Reads how near the database is to its own limits; rarer than the queue, for it changes slowly."""

    name = "read_database_state"

    def __init__(self, storage: SweeperStorage, settings: SweeperSettings) -> None:
        self.poll_seconds = settings.database_gauges_seconds
        self._storage = storage
        self._settings = settings

    async def run_once(self) -> bool:
        """One reading, or none while another replica holds the duty."""
        if not await self._storage.take_duty("gauges", self._settings.gauges_seconds * 3):
            return False
        state = await self._storage.read_database_state()
        tables = await self._storage.read_table_state()
        metrics.XID_AGE.set(state["xid_age"])
        metrics.DATABASE_BYTES.set(state["bytes"])
        metrics.CONNECTIONS.set(state["connections"])
        metrics.CONNECTION_LIMIT.set(state["connection_limit"])
        metrics.TRANSACTION_AGE.set(state["transaction_seconds"])
        for row in tables:
            metrics.LIVE_ROWS.labels(row["name"]).set(row["live"])
            metrics.DEAD_ROWS.labels(row["name"]).set(row["dead"])
        return False
