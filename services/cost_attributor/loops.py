"""When the attributor does what: traces of what ended, and the bill for those who asked."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import structlog

from services.cost_attributor import metrics
from services.cost_attributor.gateways import RUNS_PER_STATEMENT, BillingTables, Traces
from services.cost_attributor.messages import Attribution, Bill, CostRequest, Finding, Repriced, Repricing, RunShare
from services.cost_attributor.policy import attribute, in_groups, run_bills, split_bill
from services.cost_attributor.settings import CostAttributorSettings
from services.cost_attributor.storage import CostStorage
from shared.contract.channels import Channel
from shared.contract.errors import LockkeeperError, TransientError
from shared.contract.stages import COST
from shared.db.notes import Notes
from shared.runtime import tracing

log = structlog.get_logger()

LINES_PER_TRANSACTION = 200
LINES_PER_READ = 5_000
HELD_TRIES = 20
HELD_SECONDS = 0.25
REPRICE_LEASE_SECONDS = 60.0


class AttributeTraces:
    """Finds out what ended attempts used, looks again where nothing is known yet, and gives up in the end."""

    name = "attribute_traces"

    def __init__(self, storage: CostStorage, traces: Traces, notes: Notes, settings: CostAttributorSettings) -> None:
        self.poll_seconds = settings.poll_seconds
        self._storage = storage
        self._traces = traces
        self._notes = notes
        self._settings = settings
        self._heard: set[UUID] = set()
        self._starts_at = time.monotonic() + settings.start_seconds

    def hear(self, attempts: list[str] | None) -> None:
        """Attempts that were settled; one that was given up may be known now."""
        self._heard.update(UUID(each) for each in attempts or ())

    async def run_once(self) -> bool:
        """Look at one batch; True when there may be another."""
        if time.monotonic() < self._starts_at:
            return False
        if self._heard:
            heard, self._heard = self._heard, set()
            await self._storage.reopen_attempts(sorted(heard))
        taken = await self._storage.take_unattributed(self._settings.batch_size)
        if not taken:
            return False
        traces = await self._traces.find(taken)
        after = self._settings.unknown_after_seconds
        found = [attribute(each, traces.get(each.attempt_id, ()), unknown_after=after) for each in taken]
        known = [each for each in found if each.finding is not Finding.PENDING]
        for first in range(0, len(known), LINES_PER_TRANSACTION):
            tasks = await self._storage.record(known[first : first + LINES_PER_TRANSACTION])
            if tasks:
                self._notes.send(Channel.COST_CHANGED, tasks)
        _count(found)
        log.info("attribute_traces", attempts=len(taken), known=len(known))
        return len(taken) == self._settings.batch_size


def _count(found: Sequence[Attribution]) -> None:
    for each in found:
        metrics.ATTRIBUTED.labels(each.finding.value).inc()
        if each.finding is not Finding.PENDING:
            tracing.record(
                COST, each.attempt.task_id, each.attempt.attempt_id, finding=each.finding.value,
                mlflow_trace_id=each.attempt.trace_id or "",
                tokens=sum((line.input_tokens or 0) + (line.output_tokens or 0) for line in each.lines),
            )  # fmt: skip
        if each.finding is Finding.UNKNOWN:
            metrics.UNKNOWN_USAGE.labels(each.attempt.agent).inc()
            log.warning("usage_unknown", attempt_id=str(each.attempt.attempt_id), agent=each.attempt.agent)
        if each.disagrees:
            metrics.DISAGREEMENTS.labels(each.attempt.agent).inc()
            log.warning("usage_disagrees", attempt_id=str(each.attempt.attempt_id), agent=each.attempt.agent)


class AnswerCostRequests:
    """Reads the bill when a person asks, and only then: a warehouse costs money by the minute."""

    name = "answer_cost_requests"

    def __init__(
        self, storage: CostStorage, billing: BillingTables, notes: Notes, settings: CostAttributorSettings
    ) -> None:
        self.poll_seconds = settings.billing_poll_seconds
        self._lease_seconds = settings.statement_seconds * 2 + 60
        self._storage = storage
        self._billing = billing
        self._notes = notes
        self._settings = settings

    async def run_once(self) -> bool:
        """Answer one request; True when there may be another."""
        request = await self._storage.take_cost_request(self._lease_seconds)
        if request is None:
            return False
        try:
            await self._answer(request)
        except TransientError as error:
            await self._not_now(request, error)
        except LockkeeperError as error:
            await self._failed(request, error.message)
        except Exception as error:
            log.exception("answer_cost_request_failed", request_id=str(request.id))
            await self._failed(request, f"the bill could not be read ({type(error).__name__})")
        return True

    async def _answer(self, request: CostRequest) -> None:
        given_up = await self._storage.list_given_up(request.from_at, request.to_at)
        if given_up:
            await self._storage.reopen_attempts(given_up)
        of_run: dict[int, list[RunShare]] = defaultdict(list)
        for share in await self._storage.list_run_shares(request.from_at, request.to_at):
            of_run[share.run_id].append(share)
        runs, records, attempts = sorted(of_run), 0, 0
        for first in range(0, len(runs), RUNS_PER_STATEMENT):
            chunk = runs[first : first + RUNS_PER_STATEMENT]
            shares = [share for run_id in chunk for share in of_run[run_id]]
            found = await self._billing.read_usage(chunk, min(share.submitted_at for share in shares))
            bills = split_bill(found, shares)
            await self._record(bills)
            await self._storage.record_run_bills(run_bills(found, shares), self._settings.bill_final_after_seconds)
            records += len(found)
            attempts += len({bill.attempt_id for bill in bills})
            if not await self._storage.extend_cost_request(request.id, self._lease_seconds):
                log.warning("lost_cost_request", request_id=str(request.id))
                return
        await self._storage.finish_cost_request(request.id, "done", attempts=attempts, records=records)
        metrics.BILLED.inc(records)
        metrics.REQUESTS.labels("done").inc()
        # Also without a change: whoever asked waits to hear that there was none.
        self._notes.send(Channel.COST_CHANGED)
        log.info("answer_cost_request", request_id=str(request.id), runs=len(runs), records=records)

    async def _record(self, bills: Sequence[Bill]) -> None:
        """Write the lines of runs whose bill changed, those of runs that somebody held a little later."""
        left: list[Bill] = []
        for group in in_groups(sorted(bills, key=lambda bill: bill.record.run_id), LINES_PER_READ):
            changed = await self._storage.list_changed_runs(group)
            left += [bill for bill in group if bill.record.run_id in changed]
        for _ in range(HELD_TRIES):
            held: set[int] = set()
            for group in in_groups(left, LINES_PER_TRANSACTION):
                tasks, busy = await self._storage.record_bills(group)
                held |= busy
                if tasks:
                    self._notes.send(Channel.COST_CHANGED, tasks)
            left = [bill for bill in left if bill.record.run_id in held]
            if not left:
                return
            await asyncio.sleep(HELD_SECONDS)
        raise TransientError("some attempts stayed locked while the bill was written", reason="busy")

    async def _not_now(self, request: CostRequest, error: TransientError) -> None:
        if request.waited_seconds > self._settings.request_seconds:
            await self._failed(request, error.message)
            return
        seconds = error.retry_after_seconds or 15.0
        await self._storage.postpone_cost_request(request.id, error.message, seconds)
        metrics.REQUESTS.labels("postponed").inc()
        log.warning("postpone_cost_request", request_id=str(request.id), error=error.message)

    async def _failed(self, request: CostRequest, message: str) -> None:
        await self._storage.finish_cost_request(request.id, "failed", error=message)
        metrics.REQUESTS.labels("failed").inc()
        self._notes.send(Channel.COST_CHANGED)
        log.warning("finish_cost_request", request_id=str(request.id), status="failed", error=message)


class ScheduleBills:
    """Asks for the bill of the last days where nobody did for a while; off unless an interval is set."""

    name = "schedule_bills"

    def __init__(self, storage: CostStorage, settings: CostAttributorSettings) -> None:
        self.poll_seconds = max(settings.billing_poll_seconds, settings.bill_every_seconds / 20)
        self._storage = storage
        self._every = settings.bill_every_seconds
        self._window = settings.bill_final_after_seconds

    async def run_once(self) -> bool:
        """Ask when it is time to; the other loop answers at its next poll."""
        request = await self._storage.schedule_cost_request(self._every, self._window)
        if request is not None:
            log.info("schedule_cost_request", request_id=str(request))
        return False


class RepriceLines:
    """Prices history anew when a person asks, a little at a time, and keeps every old figure."""

    name = "reprice_lines"

    def __init__(self, storage: CostStorage, notes: Notes, settings: CostAttributorSettings) -> None:
        self.poll_seconds = settings.billing_poll_seconds
        self._storage = storage
        self._notes = notes

    async def run_once(self) -> bool:
        """Meet one wish to its end; True when there may be another."""
        wish = await self._storage.take_repricing(REPRICE_LEASE_SECONDS)
        if wish is None:
            return False
        after, changed = wish.after_attempt, 0
        while (done := await self._step(wish, after)) is not None:
            changed += done.changed
            if done.tasks:
                self._notes.send(Channel.COST_CHANGED, done.tasks)
            if done.after_attempt is None:
                await self._storage.finish_repricing(wish.id, "done")
                break
            after = done.after_attempt
        # Also without a change: whoever asked waits to hear that there was none.
        self._notes.send(Channel.COST_CHANGED)
        log.info("reprice_lines", repricing_id=str(wish.id), changed=changed)
        return True

    async def _step(self, wish: Repricing, after: UUID | None) -> Repriced | None:
        for _ in range(HELD_TRIES):
            try:
                return await self._storage.reprice(wish, after, LINES_PER_TRANSACTION, REPRICE_LEASE_SECONDS)
            except TransientError as error:
                if error.reason != "busy":
                    raise
                await asyncio.sleep(HELD_SECONDS)
        # Its lease ends, and somebody goes on from where it came.
        raise TransientError("an attempt stayed locked while history was priced anew", reason="busy")


class WatchBudgets:
    """Tells once for each period when a budget is spent to a stated share, and keeps the gauge of all of them."""

    name = "watch_budgets"

    def __init__(self, storage: CostStorage, settings: CostAttributorSettings) -> None:
        self.poll_seconds = settings.budget_poll_seconds
        self._storage = storage
        self._shares = sorted(settings.budget_alert_shares)

    async def run_once(self) -> bool:
        """Look at every budget."""
        budgets = await self._storage.list_budgets()
        metrics.BUDGET_SHARE.clear()
        for each in budgets:
            metrics.BUDGET_SHARE.labels(each.scope, each.name, each.period).set(float(each.share))
        reached = [(each, share) for each in budgets for share in self._shares if each.share >= share]
        for alert in await self._storage.record_alerts(reached) if reached else ():
            metrics.BUDGET_ALERTS.labels(alert["scope"], alert["period"], str(alert["share"])).inc()
            log.warning("budget_alert", **{name: str(value) for name, value in alert.items()})
        return False
