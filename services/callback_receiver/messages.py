"""What arrives and what is answered: bodies read once, and the values that settling hands around."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import orjson
from pydantic import ValidationError

from shared.contract.callback import FailureBody, HeartbeatBody, ResultBody
from shared.contract.errors import RejectedError, WriteOutcome
from shared.contract.text import clean_json

Body = ResultBody | FailureBody | HeartbeatBody


class Kind(StrEnum):
    """What an agent may post; the last part of the path."""

    RESULT = "result"
    FAILURE = "failure"
    HEARTBEAT = "heartbeat"


class Verdict(StrEnum):
    """What a report did. The first three are verbs of the task's life."""

    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    RECORD = "record"
    """Kept on the attempt; the task goes on without it."""
    NOTE = "note"
    """The attempt or its task had ended: only what it spent is kept."""
    SETTLED = "settled"
    """The attempt has spoken before; its first word counts."""
    RESULT_MISSING = "result_missing"
    EXTEND = "extend"
    """A heartbeat of the live attempt."""
    IGNORE = "ignore"
    """A heartbeat of an attempt that holds no lease."""
    MISSING = "missing"
    """No such attempt."""


@dataclass(frozen=True, slots=True)
class Report:
    """One callback: which attempt, and its body. `result` is the inline result, already JSON text."""

    attempt_id: UUID
    kind: Kind
    body: Body
    result: bytes | None = None


class Settled(NamedTuple):
    """What became of a report."""

    attempt_id: UUID
    kind: Kind
    verdict: Verdict
    outcome: str = ""
    write: WriteOutcome = WriteOutcome.MISSING
    task_id: UUID | None = None
    agent: str = ""
    cancel_requested: bool = False
    superseded: tuple[UUID, ...] = ()

    def answer(self) -> bytes:
        """The body of a 200: the same bytes for the same outcome."""
        said: dict[str, Any] = {"attempt_id": str(self.attempt_id), "outcome": self.outcome}
        if self.kind is Kind.HEARTBEAT:
            said["cancel_requested"] = self.cancel_requested
        return orjson.dumps(said)


_BODIES: dict[Kind, type[Body]] = {
    Kind.RESULT: ResultBody,
    Kind.FAILURE: FailureBody,
    Kind.HEARTBEAT: HeartbeatBody,
}


def read_report(attempt_id: UUID, kind: Kind, raw: bytes) -> Report:
    """The report in a verified body. RejectedError says, for a person, what does not fit; it never quotes values."""
    value, dropped = _parse(raw)
    if not isinstance(value, dict):
        raise RejectedError("the body is not a JSON object", reason="body_invalid")
    try:
        body = _BODIES[kind].model_validate(value)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)[:5]]
        raise RejectedError("; ".join(faults), reason="body_invalid") from None
    if not isinstance(body, ResultBody):
        return Report(attempt_id, kind, body)
    if dropped:
        body = body.model_copy(update={"cleaned_characters": body.cleaned_characters + dropped})
    return Report(attempt_id, kind, body, None if body.result is None else _encode(body.result))


def recovered_report(attempt_id: UUID, confidence: float | None, pages: int | None, report: Any) -> Report:
    """The report that the agent would have posted, from the row it left; a damaged one gives what is sure."""
    sure = {"result_stored": True, "confidence": confidence, "pages": pages}
    said = report if isinstance(report, dict) else {}
    try:
        body = ResultBody.model_validate({**said, **sure, "result": None})
    except ValidationError:
        body = ResultBody.model_validate(sure)
    return Report(attempt_id, Kind.RESULT, body)


def _parse(raw: bytes) -> tuple[Any, int]:
    """The value without what Postgres cannot store, and how many characters that cost."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # orjson refuses halves of surrogate pairs, which are legal JSON and come out of damaged fonts.
        value = _parse_slowly(raw)
    else:
        if b"\\u0000" not in raw:
            return value, 0
    return clean_json(value)


def _parse_slowly(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RejectedError(f"the body is not JSON: {error}"[:300], reason="body_invalid") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _encode(result: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(result)
    except (TypeError, RecursionError) as error:
        raise RejectedError(f"the result cannot be stored: {error}"[:300], reason="body_invalid") from None
