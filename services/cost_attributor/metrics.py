"""Metrics of the cost attributor."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

ATTRIBUTED = Counter(
    "lockkeeper_attempts_attributed_total", "Attempts by what was found out about their cost.", ["finding"]
)
UNKNOWN_USAGE = Counter("lockkeeper_unknown_usage_total", "Attempts whose usage nobody knows.", ["agent"])
DISAGREEMENTS = Counter(
    "lockkeeper_usage_disagreements_total",
    "Attempts whose agent counted more tokens than their traces hold.",
    ["agent"],
)
SEARCH_SECONDS = Histogram(
    "lockkeeper_trace_search_seconds", "Duration of one search for traces.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)  # fmt: skip
BILLED = Counter("lockkeeper_billing_records_total", "Billing records read and split over attempts.")
REQUESTS = Counter(
    "lockkeeper_cost_requests_total", "Requests for the warehouse's figures, by how they ended.", ["status"]
)
BUDGET_SHARE = Gauge(
    "lockkeeper_budget_spent_share", "Part of a budget that is spent in its present period.",
    ["scope", "name", "period"],
)  # fmt: skip
BUDGET_ALERTS = Counter(
    "lockkeeper_budget_alerts_total", "Budgets that were spent to a stated share.", ["scope", "period", "share"]
)
