"""Delivering what was taken in: at once for the caller who waits, and again by any replica until it is settled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import structlog

from services.underwriting_api import metrics
from services.underwriting_api.gateways import TemporalGateway
from services.underwriting_api.settings import ApiSettings
from services.underwriting_api.storage import ApiStorage, Verdict
from shared.contract.errors import ConflictError, MissingError, RejectedError, TransientError
from shared.contract.underwriting import TERMINAL_STATES, Decision, LoanRequest, Pace, RunStart

log = structlog.get_logger()

BATCH = 50


class Delivery:
    """Brings requests, decisions and cancellations to Temporal. Every call may be repeated by anybody."""

    def __init__(self, storage: ApiStorage, temporal: TemporalGateway, settings: ApiSettings) -> None:
        self._storage = storage
        self._temporal = temporal
        self._settings = settings

    async def start(self, run: UUID, request: LoanRequest, options: Mapping[str, Any]) -> None:
        """Start the run in Temporal, or leave it for the next round."""
        start = RunStart(
            run_id=run, requester=request.user, purpose=request.purpose, turn_limit=request.turn_limit,
            four_eyes=request.four_eyes, pace=Pace.model_validate(options.get("pace", {})),
            search_attributes=self._settings.search_attributes,
        )  # fmt: skip
        try:
            temporal_run = await self._temporal.start(start)
        except TransientError as error:
            metrics.STARTS.labels("postponed").inc()
            log.warning("postpone_start", run_id=str(run), error=error.message)
            await self._storage.postpone_start(run)
        except RejectedError as error:
            metrics.STARTS.labels("refused").inc()
            await self._storage.refuse_start(run, {"reason": error.reason, "message": error.message})
        else:
            metrics.STARTS.labels("started").inc()
            await self._storage.record_start(run, temporal_run)

    async def decide(self, run: UUID, decision: Decision) -> Verdict:
        """What became of a decision that is on record; `received` when nobody knows yet."""
        began = time.monotonic()
        try:
            receipt = await self._temporal.decide(run, decision)
        except ConflictError as error:
            verdict = Verdict("refused", refusal=error.reason, message=error.message)
        except MissingError as error:
            known = await self._storage.read_run(run)
            if known is None or known["state"] in TERMINAL_STATES:
                verdict = Verdict("refused", refusal="run_ended", message="the run has ended")
            else:
                verdict = Verdict("received", message=error.message)
        except TransientError as error:
            log.info("postpone_decision", decision_id=str(decision.decision_id), reason=error.reason)
            verdict = Verdict("received", message=error.message)
        else:
            verdict = Verdict("accepted", effect=receipt.effect, turn=receipt.turn)
        if verdict.status == "received":
            await self._storage.postpone_decision(decision.decision_id)
        else:
            await self._storage.settle_decision(run, decision.decision_id, verdict)
        metrics.DELIVERY_SECONDS.observe(time.monotonic() - began)
        metrics.DECISIONS.labels(decision.decision, verdict.refusal or verdict.status).inc()
        return verdict

    async def cancel(self, run: UUID) -> None:
        """Tell Temporal that the run should end, or leave it for the next round."""
        try:
            await self._temporal.cancel(run)
        except MissingError:
            return
        except TransientError as error:
            log.warning("postpone_cancel", run_id=str(run), error=error.message)
            return
        await self._storage.record_cancel(run)


class StartLoop:
    """Starts what Temporal did not take at first."""

    name = "take_unstarted"

    def __init__(self, storage: ApiStorage, delivery: Delivery, settings: ApiSettings) -> None:
        self.poll_seconds = settings.poll_seconds
        self._storage = storage
        self._delivery = delivery

    async def run_once(self) -> bool:
        """One batch."""
        rows = await self._storage.take_unstarted(BATCH)
        for row in rows:
            await self._delivery.start(row["run_id"], LoanRequest.model_validate(row["request"]), row["options"])
        return len(rows) == BATCH


class DecisionLoop:
    """Sends decisions again whose fate is not known; the same id makes that harmless."""

    name = "take_undelivered"

    def __init__(self, storage: ApiStorage, delivery: Delivery, settings: ApiSettings) -> None:
        self.poll_seconds = settings.poll_seconds
        self._storage = storage
        self._delivery = delivery

    async def run_once(self) -> bool:
        """One batch."""
        rows = await self._storage.take_undelivered(BATCH)
        for row in rows:
            run = row.pop("run_id")
            await self._delivery.decide(run, Decision.model_validate(row))
        return len(rows) == BATCH


class CancelLoop:
    """Tells Temporal again that a run should end."""

    name = "take_uncancelled"

    def __init__(self, storage: ApiStorage, delivery: Delivery, settings: ApiSettings) -> None:
        self.poll_seconds = settings.poll_seconds
        self._storage = storage
        self._delivery = delivery

    async def run_once(self) -> bool:
        """One batch."""
        runs = await self._storage.take_uncancelled(BATCH)
        for run in runs:
            await self._delivery.cancel(run)
        return len(runs) == BATCH
