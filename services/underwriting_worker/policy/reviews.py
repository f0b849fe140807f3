"""Which decision counts: exactly one ends a review, and every other one learns why it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from shared.contract.underwriting import Decision, Refusal, review_id

Effect = Literal["decided", "first_approval"]


@dataclass(frozen=True, slots=True)
class Review:
    """What a decision is held against: the run's present turn, and what was accepted for it so far."""

    run_id: UUID
    turn: int
    turn_limit: int
    four_eyes: bool
    requester: str
    approvals: Sequence[Decision]
    winner: Decision | None
    ended: bool
    cancelling: bool


def refuse(review: Review, decision: Decision) -> tuple[Refusal, str] | None:
    """Why this decision changes nothing, in a word and in a sentence; None when it counts.

    A decision for the present turn counts also before its review is open: it is kept until then.
    """
    if review.ended:
        return Refusal.RUN_ENDED, "the run has ended"
    if review.cancelling:
        return Refusal.RUN_CANCELLING, "the run is being cancelled"
    if decision.review_id != review_id(review.run_id, review.turn):
        return Refusal.STALE_REVIEW, f"this review is not open; the run is at turn {review.turn}"
    if review.winner is not None:
        return Refusal.ALREADY_DECIDED, f"{review.winner.reviewer} has already decided: {review.winner.decision}"
    if decision.decision == "request_more_info" and review.turn >= review.turn_limit:
        return Refusal.TURN_LIMIT_REACHED, f"this was turn {review.turn} of {review.turn_limit}: approve or deny"
    if review.four_eyes and decision.decision == "approve":
        if decision.reviewer == review.requester:
            return Refusal.OWN_REQUEST, "the person who asked for the loan may not approve it"
        if any(each.reviewer == decision.reviewer for each in review.approvals):
            return Refusal.SAME_REVIEWER, "the second approval must come from another person"
    return None


def effect_of(review: Review, decision: Decision) -> Effect:
    """What a decision that counts does."""
    if review.four_eyes and decision.decision == "approve" and not review.approvals:
        return "first_approval"
    return "decided"
