"""Metrics of the underwriting API."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

DECISIONS = Counter(
    "lockkeeper_underwriting_decisions_total", "Decisions by what became of them at once.", ["decision", "outcome"]
)
DELIVERY_SECONDS = Histogram(
    "lockkeeper_underwriting_delivery_seconds",
    "From the decision's row to Temporal's answer.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30, 300),
)
STARTS = Counter("lockkeeper_underwriting_starts_total", "Attempts to start a run in Temporal.", ["outcome"])
