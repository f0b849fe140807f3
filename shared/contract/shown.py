"""How rows are shown to people and programs: the same JSON in the API and in the event stream.

Money is a decimal string with its currency beside it. An amount that is not known yet is the word
`pending`, one that will not become known is `unknown`, and usage without a price is `unpriced`; none of
them is ever 0. The amount of a task that ended without an attempt is known: it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from shared.contract.lifecycle import TERMINAL

PENDING = "pending"
UNKNOWN = "unknown"
UNPRICED = "unpriced"

Row = Mapping[str, Any]
Json = dict[str, Any]

TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_AGENT_STATE = (
    "running", "reserved_tpm", "used_tpm", "slots", "tokens_left", "waiting", "deferred", "oldest_waiting_seconds",
)  # fmt: skip


def amount(value: Decimal | None, otherwise: str = PENDING) -> str:
    """A sum of money as a plain decimal string."""
    return otherwise if value is None else format(value, "f")


def shown_amounts(row: Row, cost_status: str) -> Json:
    """The two amounts of an attempt or a task. `cost_status` is that of the traces; the bill comes when it comes."""
    otherwise = {PENDING: PENDING, UNKNOWN: UNKNOWN}.get(cost_status, UNPRICED)
    return {"llm_cost": amount(row["llm_cost"], otherwise), "compute_cost": amount(row["compute_cost"])}


def shown_cost(row: Row) -> Json:
    """Tokens and money of a row of `task_overview`."""
    tokens = {name: row[name] for name in TOKENS}
    if not row["attempts"] and row["status"] in TERMINAL:
        known = {"llm_cost": "0", "compute_cost": "0", "retry_cost": "0", "cost_status": "final"}
        return {**tokens, **known, "currency": row["currency"]}
    status = row["cost_status"] if row["attempts"] else PENDING
    return {
        **tokens,
        **shown_amounts(row, status),
        "retry_cost": None if row["retry_cost"] is None else amount(row["retry_cost"]),
        "currency": row["currency"],
        "cost_status": status,
    }


def shown_task(row: Row, waiting_reason: str | None = None) -> Json:
    """A row of `task_overview`; `waiting_reason` is the word of `lockkeeper.waiting_reasons`, if it waits."""
    error = row["error"]
    progress = {"pages_done": row["pages_done"], "pages_total": row["pages_total"], "step": row["step"]}
    document = None
    if row["document_id"] is not None:
        document = {"id": str(row["document_id"]), "name": row["document_name"], "pages": row["document_pages"]}
    return {
        "id": str(row["id"]),
        "agent": row["agent"],
        "customer": row["customer"],
        "priority": row["priority"],
        "status": row["status"],
        "reason": waiting_reason or (error or {}).get("reason") or row["reason"],
        "attempt": row["attempt"],
        "max_attempts": row["max_attempts"],
        "created_at": row["created_at"],
        "available_at": row["available_at"],
        "started_at": row["started_at"],
        "finished_at": row["finished_at"],
        "estimated_tokens": row["estimated_tokens"],
        "progress": progress,
        "confidence": None if row["confidence"] is None else round(float(row["confidence"]), 4),
        "document": document,
        "labels": row["labels"],
        "source_task_id": _text(row["source_task_id"]),
        "parent_task_id": _text(row["parent_task_id"]),
        "created_by": row["created_by"],
        "error": error,
        "waiting": None if waiting_reason is None else {"reason": waiting_reason},
        **shown_cost(row),
        "version": row["version"],
    }


def shown_summary(row: Row) -> Json:
    """The row of `lockkeeper.summarise_tasks`. Sums leave out what is pending, and say of how many attempts."""
    counts = {name: row[name] for name in ("enqueued", "processing", "completed", "failed", "cancelled")}
    nothing = Decimal(0) if not row["attempts"] else None
    return {
        "counts": counts,
        "total": sum(counts.values()),
        **{name: row[name] or 0 for name in TOKENS},
        "llm_cost": amount(row["llm_cost"] if row["llm_cost"] is not None else nothing),
        "compute_cost": amount(row["compute_cost"] if row["compute_cost"] is not None else nothing),
        "currency": row["currency"],
        "llm_cost_pending": row["llm_cost_pending"],
        "compute_cost_pending": row["compute_cost_pending"],
        "median_response_seconds": _rounded(row["median_seconds"]),
        "p95_response_seconds": _rounded(row["p95_seconds"]),
        "confidence": _rounded(row["confidence"], 4),
        "oldest_waiting_at": row["oldest_waiting_at"],
        **{name: row[name] for name in ("is_exact", "counted_from", "counted_at")},
    }


def shown_agent_state(row: Row) -> Json:
    """How far an agent's limits are used now, and what waits for it."""
    age = row["oldest_waiting_seconds"]
    return {name: row[name] for name in _AGENT_STATE} | {"oldest_waiting_seconds": None if age is None else float(age)}


def shown_circuit(row: Row) -> Json:
    """An agent's circuit breaker."""
    return {
        "state": row["circuit"], "open_until": row["circuit_until"], "failed_in_a_row": row["failed_in_a_row"],
    }  # fmt: skip


def shown_budget(row: Row) -> Json | None:
    """What a row of `budget_state` has left; None without one."""
    if row["spent_today"] is None:
        return None
    sums = ("spent_today", "spent_this_month", "reserved_this_month", "cost_left")
    return {**{name: amount(row[name]) for name in sums}, "renewed_at": row["renewed_at"]}


def shown_estimates(row: Row) -> Json | None:
    """What an agent's tasks took on the average; None before the first was measured."""
    if row["samples"] is None:
        return None
    return {
        "samples": row["samples"],
        "tokens": _rounded(row["learned_tokens"], 1),
        "seconds": _rounded(row["learned_seconds"]),
        "tokens_per_page": _rounded(row["learned_tokens_per_page"], 1),
        "cost": None if row["learned_cost"] is None else amount(row["learned_cost"]),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(float(value), digits)
