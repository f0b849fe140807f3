"""What every activity does around its work: number the attempt, beat, sort errors, record how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from services.underwriting_worker import metrics
from services.underwriting_worker.messages import Step
from services.underwriting_worker.policy.faults import DATABASE
from services.underwriting_worker.storage import Attempt, UnderwritingStorage
from shared.contract.errors import ConflictError, LockkeeperError, TransientError, WriteOutcome
from shared.contract.underwriting import step_id

log = structlog.get_logger()

NOTE_SECONDS = 1.0
"""How long a failed attempt may take to say so; the retry is worth more than the note."""


def attempt_of(step: Step, step_key: UUID | object) -> Attempt:
    """This attempt; steps of the record are named by their key, others by the id of what they make."""
    info = activity.info()
    name = info.activity_type
    found = step_key if isinstance(step_key, UUID) else step_id(step.run_id, name, step_key)
    return Attempt(step.run_id, step.turn, name, found, step.round, info.attempt)


@asynccontextmanager
async def recorded(storage: UnderwritingStorage, attempt: Attempt) -> AsyncIterator[None]:
    """Inside this block an error is put on record, then handed to Temporal as retryable or not."""
    beating = asyncio.create_task(_beat())
    try:
        yield
    except asyncio.CancelledError:
        await _note(storage, attempt, {"type": "cancelled", "message": "the attempt was cancelled"})
        raise
    except LockkeeperError as error:
        is_retryable = isinstance(error, TransientError)
        if error.reason != DATABASE:
            await _note(storage, attempt, {"type": error.reason, "message": error.message, "retryable": is_retryable})
        else:
            metrics.STEPS.labels(attempt.activity, "database_fault").inc()
        wait = error.retry_after_seconds if isinstance(error, TransientError) else None
        raise ApplicationError(
            error.message, type=error.reason, non_retryable=not is_retryable,
            next_retry_delay=None if wait is None else timedelta(seconds=wait),
        ) from None  # fmt: skip
    except ApplicationError:
        raise
    except Exception as error:
        log.exception("step_failed", activity=attempt.activity, run_id=str(attempt.run_id))
        await _note(storage, attempt, {"type": "unexpected", "message": repr(error)[:500], "retryable": True})
        raise ApplicationError(repr(error)[:500], type="unexpected") from error
    finally:
        beating.cancel()


def refuse_conflict(outcome: WriteOutcome, what: str) -> None:
    """A record that says something else than we do is never overwritten: people are told. Raises ConflictError."""
    if outcome in (WriteOutcome.CONFLICT, WriteOutcome.MISSING):
        log.error("record_conflict", what=what, outcome=outcome.value)
        raise ConflictError(f"the record of {what} says something else", reason=f"record_{outcome.value}")


async def _beat() -> None:
    """Say that the attempt lives, a few times within what is allowed; cancellation comes back on this way."""
    limit = activity.info().heartbeat_timeout
    if limit is None:
        return
    while True:
        activity.heartbeat()
        await asyncio.sleep(max(0.1, limit.total_seconds() / 3))


async def _note(storage: UnderwritingStorage, attempt: Attempt, error: dict[str, Any]) -> None:
    with suppress(LockkeeperError, TimeoutError):
        async with asyncio.timeout(NOTE_SECONDS):
            await storage.end_step(attempt, "failed", error)
