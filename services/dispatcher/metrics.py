"""Metrics of the dispatcher."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CLAIM_SECONDS = Histogram(
    "lockkeeper_claim_seconds",
    "Duration of one claim transaction.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
CLAIMED = Counter("lockkeeper_claimed_tasks_total", "Tasks leased by this process.", ["agent"])
DISPATCH_LATENCY = Histogram(
    "lockkeeper_dispatch_latency_seconds",
    "From the moment a task was available to its claim.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800),
)
SUBMIT_SECONDS = Histogram(
    "lockkeeper_submit_seconds",
    "Duration of one call that starts a run.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
SUBMITS = Counter("lockkeeper_submits_total", "Calls that start a run, by how they ended.", ["agent", "outcome"])
LEASES_HELD = Gauge("lockkeeper_leases_held", "Attempts that this process has leased and not yet handed on.")
TAKEN_OVER = Counter("lockkeeper_take_over_unsubmitted_total", "Leases of silent dispatchers taken over.")
CIRCUITS = Counter("lockkeeper_circuit_changes_total", "Circuit breakers that opened or closed.", ["agent", "state"])
RUNS_CANCELLED = Counter("lockkeeper_cancelled_runs_total", "Runs whose cancellation the runner confirmed.")
