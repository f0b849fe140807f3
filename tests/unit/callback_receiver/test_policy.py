from __future__ import annotations

import uuid

import pytest
from pydantic import ValidationError

from services.callback_receiver.messages import Kind, Settled, Verdict, read_report, recovered_report
from services.callback_receiver.policy import attempt_of, classify, first_of_each, is_fresh, rate_tokens
from services.callback_receiver.settings import CallbackReceiverSettings
from shared.contract.callback import ResultBody, Usage
from shared.contract.errors import RejectedError, WriteOutcome

ATTEMPT = uuid.UUID("01890000-0000-7000-8000-0000000000aa")


def test_only_the_usual_spelling_names_an_attempt() -> None:
    assert attempt_of(str(ATTEMPT)) == ATTEMPT
    assert attempt_of(str(ATTEMPT).upper()) == ATTEMPT
    for odd in ("", ATTEMPT.hex, f"{{{ATTEMPT}}}", f"urn:uuid:{ATTEMPT}", f" {ATTEMPT}", f"{ATTEMPT}\n", "../x"):
        assert attempt_of(odd) is None


@pytest.mark.parametrize(
    ("timestamp", "fresh"),
    [("1000", True), ("700", True), ("1300", True), ("699", False), ("1301", False), ("", False), ("1e3", False),
     ("+1000", False), ("1000.0", False), ("١٠٠٠", False), ("9" * 12, False)],
)  # fmt: skip
def test_a_timestamp_is_whole_seconds_within_the_window(timestamp: str, fresh: bool) -> None:
    assert is_fresh(timestamp, 1_000.0, 300) is fresh


def test_tokens_read_from_a_cache_do_not_count_towards_the_rate() -> None:
    one = Usage(model="a", input_tokens=10, output_tokens=5, cache_read_tokens=1_000, cache_write_tokens=2)
    assert rate_tokens([one, Usage(model="b", output_tokens=1)]) == 18
    assert rate_tokens([]) is None


def test_one_report_per_task_in_a_round() -> None:
    assert first_of_each(["a", "b", "a", "c", "b"]) == [True, True, False, True, False]


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_its_class(kind: Kind, verdict: Verdict) -> None:
    claimed = {Kind.RESULT: "completed", Kind.FAILURE: "failed", Kind.HEARTBEAT: "running"}[kind]
    agreed, contradicted = classify(kind, verdict, claimed), classify(kind, verdict, "superseded")
    if verdict in {Verdict.SETTLED, Verdict.NOTE, Verdict.IGNORE}:
        assert (agreed, contradicted) == (WriteOutcome.NO_OP, WriteOutcome.CONFLICT)
    else:
        assert agreed is contradicted


def test_the_answer_is_the_same_bytes_for_the_same_outcome() -> None:
    ended = Settled(ATTEMPT, Kind.RESULT, Verdict.COMPLETE, "completed", WriteOutcome.APPLIED)
    again = Settled(ATTEMPT, Kind.RESULT, Verdict.SETTLED, "completed", WriteOutcome.NO_OP, agent="x")
    assert ended.answer() == again.answer()
    assert b"cancel_requested" not in ended.answer()


def test_a_refusal_never_quotes_what_was_sent() -> None:
    with pytest.raises(RejectedError) as refused:
        read_report(ATTEMPT, Kind.HEARTBEAT, b'{"pages_done": "secret-of-the-sender"}')
    assert "pages_done" in refused.value.message
    assert "secret-of-the-sender" not in refused.value.message


def test_usage_that_is_not_given_differs_from_usage_that_is_empty() -> None:
    assert "usage" not in read_report(ATTEMPT, Kind.RESULT, b"{}").body.model_fields_set
    assert "usage" in read_report(ATTEMPT, Kind.RESULT, b'{"usage": []}').body.model_fields_set


@pytest.mark.parametrize("report", [None, [], {"usage": "odd"}, {"unknown": 1}, {"trace_state": "stored", "pages": 9}])
def test_a_recovered_row_gives_at_least_what_is_sure(report: object) -> None:
    body = recovered_report(ATTEMPT, 0.5, 3, report).body
    assert isinstance(body, ResultBody)
    assert (body.result_stored, body.confidence, body.pages) == (True, 0.5, 3)


def test_short_secrets_and_too_many_keys_refuse_the_start() -> None:
    with pytest.raises(ValidationError, match="at least 16 bytes") as refused:
        CallbackReceiverSettings(keys={"a": "short"})
    assert "short" not in str([each["msg"] for each in refused.value.errors()])
    with pytest.raises(ValidationError):
        CallbackReceiverSettings(keys={})
    with pytest.raises(ValidationError):
        CallbackReceiverSettings(keys={str(n): "x" * 32 for n in range(5)})
