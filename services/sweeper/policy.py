"""What an expired lease means, once the runner was asked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shared.contract.rows import OverdueAttempt


class Finding(StrEnum):
    """What the sweep does with an overdue attempt."""

    RESULT_FOUND = "result_found"
    STILL_RUNNING = "still_running"
    IN_DOUBT = "in_doubt"
    LOST = "lost"
    NEVER_STARTED = "never_started"
    HOPELESS = "hopeless"
    TOO_LONG = "too_long"


LOSSES = frozenset({Finding.LOST, Finding.NEVER_STARTED, Finding.HOPELESS, Finding.TOO_LONG})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the runner said. `phase` and `verdict` are words of the Jobs client; `None` phase: no such run."""

    phase: str | None
    verdict: str = "failed"
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A finding with the reason that people will read."""

    finding: Finding
    reason: str
    message: str


def judge(attempt: OverdueAttempt, answer: Answer | None) -> Judgement:
    """Decide about an overdue attempt; `answer` is None when the runner could not be asked.

    A run that may still live is never given up before its agent's longest run time: starting a second
    one would be paid twice. Only a run that ended, or that nobody knows, loses the attempt.
    """
    if attempt.has_result:
        return Judgement(Finding.RESULT_FOUND, "result_found", "the run left its result without a callback")
    if answer is None:
        return Judgement(Finding.IN_DOUBT, "runner_unreachable", "the runner could not be asked")
    if answer.phase is None:
        return Judgement(Finding.LOST, "run_unknown", f"the runner does not know run {attempt.run_id}")
    if answer.phase == "ended":
        return _ended(attempt, answer)
    if attempt.ran_seconds > attempt.max_run_seconds:
        limit = f"the run lived longer than {attempt.max_run_seconds} s and was cancelled"
        return Judgement(Finding.TOO_LONG, "run_too_long", limit)
    if answer.phase == "unknown":
        return Judgement(
            Finding.IN_DOUBT, "run_state_unknown", f"the run is in a state that is not known: {answer.code}"
        )
    return Judgement(Finding.STILL_RUNNING, "still_running", "the run lives")


def _ended(attempt: OverdueAttempt, answer: Answer) -> Judgement:
    said = f": {answer.message}" if answer.message else ""
    if attempt.not_begun:
        what = f"run {attempt.run_id} ended before this attempt's turn{said}"
        return Judgement(Finding.NEVER_STARTED, "run_ended_before_turn", what)
    word = answer.code.lower().removeprefix("run_") or "ended"
    if answer.verdict == "never_started":
        return Judgement(Finding.NEVER_STARTED, f"run_{word}", f"run {attempt.run_id} was never started{said}")
    if answer.verdict == "hopeless":
        return Judgement(Finding.HOPELESS, f"run_{word}", f"run {attempt.run_id} ended as {answer.code}{said}")
    if answer.verdict == "succeeded":
        return Judgement(Finding.LOST, "run_ended_silently", f"run {attempt.run_id} ended without a word")
    return Judgement(Finding.LOST, f"run_{word}", f"run {attempt.run_id} ended as {answer.code}{said}")
