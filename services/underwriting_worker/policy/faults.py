"""Whose fault it was that a step failed: its own, the database's, or that of a worker that went away."""

from __future__ import annotations

from enum import Enum

from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError, TimeoutType  # noqa: A004

DATABASE = "database_unavailable"
UNREADY = "database_unready"
_NOBODY_WORKED = frozenset({TimeoutType.HEARTBEAT, TimeoutType.SCHEDULE_TO_CLOSE, TimeoutType.SCHEDULE_TO_START})


class Fault(Enum):
    """What to do about a step whose attempts are used up."""

    OWN = "own"
    """It will not do better: go on without it."""
    DATABASE = "database"
    """The record cannot be reached: wait, then try again."""
    LOST = "lost"
    """No worker finished it: try again a few times."""


def sort(fault: ActivityError) -> Fault:
    """Whose fault it was. A step that ran into its own time limit each time has failed by itself."""
    cause = fault.cause
    if isinstance(cause, ApplicationError):
        return Fault.DATABASE if cause.type == DATABASE and not cause.non_retryable else Fault.OWN
    if isinstance(cause, TimeoutError):
        # A time limit that ran out while a real error waited for its retry is that error's fault.
        if isinstance(cause.cause, ApplicationError):
            return Fault.DATABASE if cause.cause.type == DATABASE else Fault.OWN
        return Fault.LOST if cause.type in _NOBODY_WORKED else Fault.OWN
    return Fault.OWN


def may_pass(fault: ActivityError) -> bool:
    """Whether another try could end otherwise: what the record needs is tried until it is written."""
    return not (isinstance(fault.cause, ApplicationError) and fault.cause.non_retryable)


def described(fault: BaseException) -> dict[str, str]:
    """The last real error in a word and a sentence, not only that time ran out."""
    timed_out: TimeoutError | None = None
    found: BaseException | None = fault
    while isinstance(found, FailureError):
        if isinstance(found, ApplicationError):
            return {"reason": found.type or "unexpected", "message": found.message}
        if isinstance(found, TimeoutError):
            timed_out = timed_out or found
        found = found.cause
    if timed_out is not None:
        kind = "" if timed_out.type is None else timed_out.type.name.lower()
        return {"reason": "timed_out", "message": f"no answer within the time limit ({kind})"}
    return {"reason": "unexpected", "message": str(fault)}
