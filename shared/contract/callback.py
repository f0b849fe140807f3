"""The callback: what an agent posts about its attempt, how it is signed, what it is answered.

An agent outside posts `result`, `failure` or `heartbeat` to
`/callbacks/v1/attempts/{attempt_id}/…`. The attempt id is the fencing token: it names the one
attempt that the sender was given, and nothing else can be ended with it. The signature covers
the timestamp and the raw bytes, so that it is checked before anything is parsed.
"""

from __future__ import annotations

import hashlib
import hmac
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

TIMESTAMP_HEADER = "X-Lockkeeper-Timestamp"
KEY_ID_HEADER = "X-Lockkeeper-Key-Id"
SIGNATURE_HEADER = "X-Lockkeeper-Signature"

RESULT_INLINE_BYTES = 65_536
"""A larger result travels by reference: the agent stores its row first and says `result_stored`."""

AttemptOutcome = Literal["completed", "failed", "cancelled", "superseded", "lost"]
TraceState = Literal["stored", "unverified", "unavailable"]
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Reason = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class Body(BaseModel):
    """A callback body refuses fields that it does not know, so that a typing slip is seen at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Usage(Body):
    """Tokens of one model inside one attempt; the four counters are disjoint."""

    model: str = Field(max_length=200)
    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cache_read_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0
    calls: Tokens = 0
    cost: Decimal | None = Field(default=None, ge=0, description="US dollars, when the provider said so")


class Report(Body):
    """What every ending says besides its outcome."""

    trace_id: str | None = Field(default=None, max_length=200)
    trace_state: TraceState = "unavailable"
    usage: list[Usage] = Field(default_factory=list, max_length=50)


class ResultBody(Report):
    """The attempt succeeded. `result` inline, or `result_stored` when its row is already written."""

    result: dict[str, Any] | None = None
    result_stored: bool = False
    confidence: float | None = Field(default=None, ge=0, le=1)
    pages: int | None = Field(default=None, ge=0, le=1_000_000)
    damage: list[str] = Field(default_factory=list, max_length=100)
    cleaned_characters: int = Field(default=0, ge=0)


class FailureBody(Report):
    """The attempt failed. `retryable` false means that no other attempt can do better."""

    reason: Reason
    message: str = Field(max_length=4_000)
    retryable: bool
    retry_after_seconds: float | None = Field(default=None, ge=0, le=86_400)


class HeartbeatBody(Body):
    """The attempt lives; extends its lease and moves the progress bar."""

    pages_done: int | None = Field(default=None, ge=0, le=1_000_000)
    pages_total: int | None = Field(default=None, ge=0, le=1_000_000)
    step: str | None = Field(default=None, max_length=200)


def sign(key: bytes, timestamp: str, body: bytes) -> str:
    """The signature header's value: `v1=` and hex HMAC-SHA256 over timestamp, a dot and the raw body."""
    return "v1=" + hmac.new(key, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def sign_for(key: bytes, timestamp: str, attempt: str, kind: str, body: bytes) -> str:
    """A signature that is good for one attempt and one kind of callback: `v2=`, and both are signed too."""
    said = f"{timestamp}.{attempt}.{kind}.".encode() + body
    return "v2=" + hmac.new(key, said, hashlib.sha256).hexdigest()


def is_signed_by(key: bytes, timestamp: str, attempt: str, kind: str, body: bytes, *, signature: str) -> bool:
    """Whether the signature, of either form, belongs to exactly these bytes; compared in constant time."""
    scoped = signature.startswith("v2=")
    right = sign_for(key, timestamp, attempt, kind, body) if scoped else sign(key, timestamp, body)
    return hmac.compare_digest(right.encode(), signature.encode("utf-8", "replace"))
