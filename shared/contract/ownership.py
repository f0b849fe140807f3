"""Who may write what: one database role per service, with exactly the rights its duty needs.

The grants are generated from this table by `shared.db.migrate` and tested both ways against a real
database. A role is a group: on Lakebase the service principal's own role is made a member of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OWNER_ROLE = "lockkeeper_owner"
READER_ROLE = "lockkeeper_reader"
CUSTOMER_READER_ROLE = "lockkeeper_customer_reader"
"""Sees its own customers only, through `customer_costs`; `reader_customers` says which they are."""
SCHEMAS = ("lockkeeper", "agent_ops", "agent_policy")
READABLE = (
    "task_costs",
    "queue_state",
    "spending",
    "cost_lines",
    "work_costs",
    "model_usage",
    "cost_reconciliation",
    "cost_forecast",
    "prices_ever",
    "agent_ops.run_overview",
)
"""Views for people and BI."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one role on one table; `update` names columns, all of them when it is `("*",)`.

    A table without a schema is one of `lockkeeper`.
    """

    table: str
    insert: bool = False
    update: tuple[str, ...] = ()
    delete: bool = False


@dataclass(frozen=True, slots=True)
class ServiceRole:
    """A service's role: what it may read (tables and views) and what it may write."""

    reads: tuple[str, ...]
    writes: tuple[Grant, ...] = field(default=())


_LEASE = ("lease_expires_at", "locked_by", "reserved_tpm", "version", "verb", "reason")
_QUEUE = (
    "agents",
    "tasks",
    "task_attempts",
    "task_events",
    "task_history",
    "token_spending",
    "spending",
    "replicas",
    "documents",
    "agent_headroom",
    "queue_state",
    "budget_state",
    "agent_estimates",
    "agent_circuits",
    "customers",
    "reservations",
)
_TOTALS = ("task_contributions", "task_counted", "task_totals", "totals_state")
_COSTS = (
    "cost_entries",
    "cost_entry_versions",
    "cost_requests",
    "model_prices",
    "repricings",
    "run_bills",
    "closed_bills",
    "budget_alerts",
    "cost_lines",
    "task_costs",
    "task_overview",
)
_QUESTIONS = ("work_costs", "model_usage", "prices_ever", "cost_reconciliation", "cost_forecast")
_REPLICA = Grant("replicas", insert=True, update=("*",))
_EVENTS = Grant("task_events", insert=True)
_REQUEUE = ("status", "oversized", "available_at", "deferred", "attempt_unspent", "finished_at", "error", *_LEASE)
_RUNS = (
    "agent_ops.agent_runs",
    "agent_ops.agent_messages",
    "agent_ops.agent_tool_calls",
    "agent_ops.agent_review_decisions",
    "agent_ops.events",
    "agent_ops.metrics",
)
_SETTLE = ("status", "effect", "refusal", "message", "turn", "decided_at")

ROLES: dict[str, ServiceRole] = {
    "dispatcher": ServiceRole(
        (*_QUEUE, "agent_rules", "fair_shares", "watched_attempts"),
        (
            _REPLICA,
            _EVENTS,
            Grant("agents", update=("cooldown_until", "learned_tokens_per_page")),
            # A claim locks the budgets that it reads; no other column may be written by it.
            Grant("customers", update=("updated_at",)),
            Grant("reservations", insert=True, update=("*",), delete=True),
            Grant("fair_shares", insert=True, update=("*",), delete=True),
            Grant("watched_attempts", insert=True, update=("judged",), delete=True),
            Grant("agent_estimates", insert=True, update=("*",)),
            Grant("agent_circuits", insert=True, update=("*",)),
            Grant("tasks", update=("attempt", "attempt_id", "started_at", "overtaken", *_REQUEUE)),
            Grant(
                "task_attempts",
                insert=True,
                update=(
                    "status",
                    "locked_by",
                    "leased_at",
                    "reserved_tpm",
                    "pack_id",
                    "run_id",
                    "task_run_id",
                    "submitted_at",
                    "finished_at",
                    "error",
                    "cancel_requested_at",
                    "cancel_checked_at",
                    "cancel_confirmed_at",
                ),
            ),
        ),
    ),
    "sweeper": ServiceRole(
        (*_QUEUE, "attempt_results", "recovered_results", "duties", "agent_changes"),
        (
            _REPLICA,
            Grant("duties", insert=True, update=("*",), delete=True),
            Grant("tasks", update=(*_REQUEUE, "spared_attempts"), delete=True),
            Grant(
                "task_attempts",
                update=("status", "finished_at", "error", "task_run_id", "cancel_requested_at"),
                delete=True,
            ),
            Grant("token_spending", delete=True),
            Grant("task_events", delete=True),
            Grant("attempt_results", delete=True),
            Grant("recovered_results", insert=True, delete=True),
            Grant("replicas", insert=True, update=("*",), delete=True),
        ),
    ),
    "callback_receiver": ServiceRole(
        (*_QUEUE, "attempt_results", "recovered_results", "families"),
        (
            _REPLICA,
            _EVENTS,
            Grant("token_spending", insert=True),
            Grant("tasks", update=(*_REQUEUE, "result", "confidence", "pages_done", "pages_total", "step")),
            Grant(
                "task_attempts",
                update=(
                    "status",
                    "started_at",
                    "finished_at",
                    "used_tokens",
                    "pages",
                    "trace_id",
                    "trace_state",
                    "error",
                    "usage",
                    "report",
                    "cancel_requested_at",
                ),
            ),
            Grant("recovered_results", update=("settled_at",)),
        ),
    ),
    "cost_attributor": ServiceRole(
        (*_QUEUE, *_COSTS),
        (
            _REPLICA,
            Grant(
                "task_attempts",
                update=(
                    "input_tokens",
                    "output_tokens",
                    "cache_read_tokens",
                    "cache_write_tokens",
                    "llm_cost",
                    "llm_cost_source",
                    "compute_cost",
                    "currency",
                    "cost_status",
                    "cost_checked_at",
                    "cost_checks",
                ),
            ),
            Grant("cost_entries", insert=True, update=("*",)),
            Grant("spending", insert=True, update=("llm_cost", "compute_cost")),
            Grant("cost_requests", insert=True, update=("*",)),
            Grant("repricings", update=("*",)),
            Grant("run_bills", insert=True, update=("*",)),
            Grant("budget_alerts", insert=True),
        ),
    ),
    "notifier": ServiceRole((*_QUEUE, *_COSTS, *_TOTALS, "api_tokens"), (_REPLICA,)),
    "console": ServiceRole(
        (
            *_QUEUE,
            *_COSTS,
            *_QUESTIONS,
            *_TOTALS,
            "agent_changes",
            "operator_audit",
            "attempt_results",
            "api_tokens",
            "families",
            "family_costs",
        ),
        (
            _REPLICA,
            Grant("task_counted", insert=True, update=("*",), delete=True),
            Grant("task_totals", insert=True, update=("*",), delete=True),
            Grant("totals_state", update=("*",)),
            Grant("agents", insert=True, update=("*",)),
            Grant("customers", insert=True, update=("*",)),
            Grant("documents", insert=True, update=("pages",)),
            Grant("operator_audit", insert=True),
            Grant("cost_requests", insert=True),
            Grant("model_prices", insert=True, update=("valid_to",), delete=True),
            Grant("repricings", insert=True),
            Grant(
                "tasks", insert=True, update=("status", "priority", "available_at", "deferred", "finished_at", *_LEASE)
            ),
            Grant("task_attempts", update=("status", "finished_at", "cancel_requested_at")),
        ),
    ),
    "document_agent": ServiceRole(("agent_inputs", "attempt_results"), (Grant("attempt_results", insert=True),)),
    "underwriting_worker": ServiceRole(
        (*_RUNS, "agent_policy.underwriting_policy_limits", "replicas", "model_prices", "cost_entries"),
        (
            _REPLICA,
            Grant("cost_entries", insert=True),
            Grant(
                "agent_ops.agent_runs",
                update=(
                    "state",
                    "outcome",
                    "turn",
                    "seq",
                    "temporal_run_id",
                    "review_id",
                    "review_opened_at",
                    "review_expires_at",
                    "review_reminded_at",
                    "recommendation",
                    "policy",
                    "input_tokens",
                    "output_tokens",
                    "cache_read_tokens",
                    "error",
                    "next_start_at",
                    "next_cancel_at",
                    "started_at",
                    "finished_at",
                    "updated_at",
                ),
            ),
            Grant("agent_ops.agent_messages", insert=True, update=("*",)),
            Grant("agent_ops.agent_tool_calls", insert=True, update=("*",)),
            Grant("agent_ops.agent_review_decisions", insert=True, update=_SETTLE),
            Grant("agent_ops.events", insert=True),
            Grant("agent_ops.metrics", insert=True, update=("*",)),
        ),
    ),
    "underwriting_api": ServiceRole(
        (*_RUNS, "agent_ops.run_overview", "agent_policy.underwriting_policy_limits", "replicas", "api_tokens"),
        (
            _REPLICA,
            Grant(
                "agent_ops.agent_runs",
                insert=True,
                update=(
                    "state",
                    "outcome",
                    "error",
                    "finished_at",
                    "updated_at",
                    "temporal_run_id",
                    "start_attempts",
                    "next_start_at",
                    "cancel_requested_at",
                    "cancel_requested_by",
                    "next_cancel_at",
                ),
            ),
            Grant(
                "agent_ops.agent_review_decisions",
                insert=True,
                update=(*_SETTLE, "delivery_attempts", "next_delivery_at"),
            ),
            Grant("agent_ops.events", insert=True),
        ),
    ),
}


def role_of(service: str) -> str:
    """The database role that a service logs in as, or is a member of."""
    return f"lockkeeper_{service}"


def grant_statements() -> list[str]:
    """The whole set of grants as SQL, idempotent: everything is revoked first."""
    groups = ", ".join([*map(role_of, ROLES), READER_ROLE, CUSTOMER_READER_ROLE])
    statements = [
        statement
        for schema in SCHEMAS
        for statement in (
            f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC, {groups}",
            f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC",
            f"GRANT USAGE ON SCHEMA {schema} TO {groups}",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {groups}",
        )
    ]
    readable = ", ".join(map(qualified, READABLE))
    statements.append(f"GRANT SELECT ON {readable} TO {READER_ROLE}")
    statements.append(f"GRANT SELECT ON lockkeeper.customer_costs TO {CUSTOMER_READER_ROLE}")
    for name, role in ROLES.items():
        tables = ", ".join(map(qualified, role.reads))
        statements.append(f"GRANT SELECT ON {tables} TO {role_of(name)}")
        statements += [_grant(role_of(name), grant) for grant in role.writes]
    return statements


def qualified(table: str) -> str:
    """The table with its schema."""
    return table if "." in table else f"lockkeeper.{table}"


def _grant(role: str, grant: Grant) -> str:
    rights = []
    if grant.insert:
        rights.append("INSERT")
    if grant.update:
        rights.append("UPDATE" if grant.update == ("*",) else f"UPDATE ({', '.join(dict.fromkeys(grant.update))})")
    if grant.delete:
        rights.append("DELETE")
    return f"GRANT {', '.join(rights)} ON {qualified(grant.table)} TO {role}"
