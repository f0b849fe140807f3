from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType  # noqa: A004

from services.underwriting_worker.policy import faults, retries, reviews
from services.underwriting_worker.policy.limits import Limits, contradicts, debt_to_income, judge
from services.underwriting_worker.policy.writes import Stored, classify
from shared.contract.errors import WriteOutcome
from shared.contract.underwriting import Decision, review_id

LIMITS = Limits("auto", "consumer", "1", 660, Decimal(36), 580, Decimal(45), "unity_catalog")
RUN = UUID(int=1)


def evidence(score: int = 700, percent: float = 20.0, material: int = 0, contradictions: tuple[str, ...] = ()) -> Any:
    return {
        "credit_check": {"score": score, "delinquencies": [{"material": True}] * material},
        "income_verification": {"contradictions": list(contradictions)},
        "debt_to_income_calc": {"dti_percent": percent, "contradictions": []},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (evidence(), "approve"),
        (evidence(660, 36.0), "approve"),
        (evidence(659), "refer"),
        (evidence(580), "refer"),
        (evidence(579), "deny"),
        (evidence(percent=36.01), "refer"),
        (evidence(percent=45.0), "refer"),
        (evidence(percent=45.01), "deny"),
        (evidence(material=1), "refer"),
        (evidence(contradictions=("stated and verified differ",)), "refer"),
        ({}, "refer"),
        ({"credit_check": {"score": 500, "delinquencies": []}}, "deny"),
    ],
)
def test_the_rules_add_up_to_the_strictest(given: Any, expected: str) -> None:
    judged = judge(LIMITS, given)
    assert judged["recommendation"] == expected
    keys = {"rule", "threshold", "actual", "passed", "source", "recommendation", "rationale"}
    assert all(set(rule) == keys and rule["rationale"] for rule in judged["rules"])


def test_the_sample_ratio() -> None:
    assert debt_to_income(Decimal(2_400), Decimal(76_000)) == Decimal("37.89")
    assert debt_to_income(Decimal(1), Decimal(0)) is None
    assert contradicts(Decimal(150_000), Decimal(82_000))
    assert not contradicts(Decimal(80_000), Decimal(76_000))
    assert not contradicts(None, Decimal(1))


@pytest.mark.parametrize("tries", [retries.MODEL, retries.TOOL, retries.RECORD])
def test_t_01_every_attempt_fits_into_the_whole(tries: retries.Tries) -> None:
    pauses = sum((tries.first_pause * 2**n for n in range(tries.attempts - 1)), timedelta())
    assert tries.attempt_limit * tries.attempts + pauses <= tries.whole_limit


def test_the_limits_are_those_that_were_promised() -> None:
    said = {
        (tries.attempts, tries.whole_limit.total_seconds()) for tries in (retries.MODEL, retries.TOOL, retries.RECORD)
    }
    assert said == {(4, 180), (3, 60), (5, 15)}
    assert retries.MODEL.attempt_limit.total_seconds() == 40


def test_a_later_round_is_newer_than_any_attempt_of_an_earlier_one() -> None:
    assert retries.fence(1, 3) < retries.fence(1, 10**9) < retries.fence(2, 1)
    assert [retries.hold(n).total_seconds() for n in (1, 2, 3, 6, 99)] == [1, 2, 4, 30, 30]


@pytest.mark.parametrize(
    ("stored", "state", "fence", "outcome"),
    [
        (None, "succeeded", 1, WriteOutcome.MISSING),
        (Stored("succeeded", 1001, is_terminal=True), "succeeded", 1001, WriteOutcome.NO_OP),
        (Stored("running", 1002, is_terminal=False), "succeeded", 1001, WriteOutcome.NO_OP),
        (Stored("succeeded", 1002, is_terminal=True), "failed", 1001, WriteOutcome.NO_OP),
        (Stored("succeeded", 1001, is_terminal=True), "failed", 1999, WriteOutcome.CONFLICT),
        (Stored("completed", 7, is_terminal=True), "cancelled", 8, WriteOutcome.CONFLICT),
    ],
)  # fmt: skip
def test_t_11_zero_rows_are_explained(stored: Stored | None, state: str, fence: int, outcome: WriteOutcome) -> None:
    assert classify(stored, state, fence) is outcome


def failure(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="",
        activity_id="",
        retry_state=None,
    )
    error.__cause__ = cause
    return error


def timed_out(kind: TimeoutType, cause: BaseException | None = None) -> TimeoutError:
    error = TimeoutError("late", type=kind, last_heartbeat_details=[])
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "fault", "reason"),
    [
        (ApplicationError("gone", type="database_unavailable"), faults.Fault.DATABASE, "database_unavailable"),
        (ApplicationError("no", type="policy_missing", non_retryable=True), faults.Fault.OWN, "policy_missing"),
        (timed_out(TimeoutType.HEARTBEAT), faults.Fault.LOST, "timed_out"),
        (timed_out(TimeoutType.SCHEDULE_TO_CLOSE), faults.Fault.LOST, "timed_out"),
        (timed_out(TimeoutType.START_TO_CLOSE), faults.Fault.OWN, "timed_out"),
        (
            timed_out(TimeoutType.SCHEDULE_TO_CLOSE, ApplicationError("busy", type="model_throttled")),
            faults.Fault.OWN, "model_throttled",
        ),
    ],
)  # fmt: skip
def test_t_01_the_fault_is_found_and_the_real_error_kept(
    cause: BaseException, fault: faults.Fault, reason: str
) -> None:
    assert faults.sort(failure(cause)) is fault
    assert faults.described(failure(cause))["reason"] == reason


def decision(word: str = "approve", reviewer: str = "reviewer-1", turn: int = 2) -> Decision:
    return Decision.model_validate(
        {"decision_id": UUID(int=9), "review_id": review_id(RUN, turn), "decision": word, "reviewer": reviewer}
    )


def review(**changes: Any) -> reviews.Review:
    given: dict[str, Any] = {
        "run_id": RUN, "turn": 2, "turn_limit": 3, "four_eyes": False, "requester": "loan-desk", "approvals": [],
        "winner": None, "ended": False, "cancelling": False,
    }  # fmt: skip
    return reviews.Review(**given | changes)


@pytest.mark.parametrize(
    ("state", "sent", "word"),
    [
        (review(), decision(), None),
        (review(), decision(turn=1), "stale_review"),
        (review(), decision(turn=3), "stale_review"),
        (review(winner=decision("deny")), decision(), "already_decided"),
        (review(ended=True), decision(), "run_ended"),
        (review(cancelling=True), decision(), "run_cancelling"),
        (review(turn_limit=2), decision("request_more_info"), "turn_limit_reached"),
        (review(four_eyes=True), decision(reviewer="loan-desk"), "own_request"),
        (review(four_eyes=True, approvals=[decision()]), decision(), "same_reviewer"),
        (review(four_eyes=True, approvals=[decision()]), decision(reviewer="reviewer-2"), None),
        (review(four_eyes=True), decision("deny", reviewer="loan-desk"), None),
    ],
)
def test_t_02_a_refusal_has_its_word(state: reviews.Review, sent: Decision, word: str | None) -> None:
    found = reviews.refuse(state, sent)
    assert (None if found is None else found[0].value) == word


def test_only_an_approval_under_four_eyes_is_a_first_one() -> None:
    for four_eyes, approvals, word in product(
        (True, False), ([], [decision()]), ("approve", "deny", "request_more_info")
    ):
        effect = reviews.effect_of(review(four_eyes=four_eyes, approvals=approvals), decision(word))
        assert (effect == "first_approval") == (four_eyes and not approvals and word == "approve")
