"""When the attributor does what: traces of what ended, and the bill for those who asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID

import structlog

from services.cost_attributor import metrics
from services.cost_attributor.gateways import BillingTables, Traces
from services.cost_attributor.messages import Attribution, Bill, CostRequest, Finding
from services.cost_attributor.policy import attribute, split_bill
from services.cost_attributor.settings import CostAttributorSettings
from services.cost_attributor.storage import CostStorage
from shared.contract.channels import Channel
from shared.contract.errors import LockkeeperError, TransientError
from shared.db.notes import Notes

log = structlog.get_logger()

LINES_PER_TRANSACTION = 200
HELD_TRIES = 20


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
        self._storage = storage
        self._billing = billing
        self._notes = notes
        self._settings = settings

    async def run_once(self) -> bool:
        """Answer one request; True when there may be another."""
        request = await self._storage.take_cost_request(self._settings.statement_seconds * 2 + 60)
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
        shares = await self._storage.list_run_shares(request.from_at, request.to_at)
        runs = sorted({share.run_id for share in shares})
        records = await self._billing.read_usage(runs, request.from_at) if runs else []
        bills = split_bill(records, shares)
        await self._record(bills)
        attempts = len({bill.attempt_id for bill in bills})
        await self._storage.finish_cost_request(request.id, "done", attempts=attempts, records=len(records))
        metrics.BILLED.inc(len(records))
        metrics.REQUESTS.labels("done").inc()
        # Also without a change: whoever asked waits to hear that there was none.
        self._notes.send(Channel.COST_CHANGED)
        log.info("answer_cost_request", request_id=str(request.id), runs=len(runs), records=len(records))

    async def _record(self, bills: Sequence[Bill]) -> None:
        """Write all lines, those of attempts that somebody held a little later."""
        left = sorted(bills, key=lambda bill: bill.attempt_id)
        for _ in range(HELD_TRIES):
            held: set[UUID] = set()
            for first in range(0, len(left), LINES_PER_TRANSACTION):
                tasks, busy = await self._storage.record_bills(left[first : first + LINES_PER_TRANSACTION])
                held |= busy
                if tasks:
                    self._notes.send(Channel.COST_CHANGED, tasks)
            left = [bill for bill in left if bill.attempt_id in held]
            if not left:
                return
            await asyncio.sleep(0.25)
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
