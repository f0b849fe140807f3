"""The results of a guarded write, and the errors by what the caller must do about them."""

from __future__ import annotations

from enum import StrEnum


class WriteOutcome(StrEnum):
    """How a fenced write ended; a refusal is a value, never an exception."""

    APPLIED = "applied"
    NO_OP = "no_op"
    CONFLICT = "conflict"
    MISSING = "missing"


class LockkeeperError(Exception):
    """Base of the errors below; `reason` is a stable snake_case word, the message is for people."""

    reason = "error"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).reason


class TransientError(LockkeeperError):
    """Try again later; `retry_after_seconds` when the other side said how much later."""

    reason = "unavailable"

    def __init__(self, message: str, *, reason: str | None = None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, reason=reason)
        self.retry_after_seconds = retry_after_seconds


class RejectedError(LockkeeperError):
    """Will never work as it is: record it and go on."""

    reason = "rejected"


class ConflictError(LockkeeperError):
    """Somebody else changed it first, or its state forbids it: shown to a person, 409 in the API."""

    reason = "conflict"


class MissingError(LockkeeperError):
    """No such thing: 404 in the API."""

    reason = "missing"


class MisconfiguredError(LockkeeperError):
    """The settings cannot work: refuse to start, with one line that says why."""

    reason = "misconfigured"
