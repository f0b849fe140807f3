"""Metrics of the callback receiver."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CALLBACKS = Counter(
    "lockkeeper_callbacks_total", "Callbacks by kind and HTTP status of the answer.", ["kind", "status"]
)
CALLBACK_SECONDS = Histogram(
    "lockkeeper_callback_seconds", "From the first byte of a callback to its answer.",
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)  # fmt: skip
REFUSED = Counter(
    "lockkeeper_callbacks_refused_total", "Callbacks that were not looked at further, by cause.", ["cause"]
)
ROUND_REPORTS = Histogram(
    "lockkeeper_settle_round_reports",
    "Reports settled in one transaction.",
    buckets=(1, 2, 5, 10, 25, 50, 100, 200, 500),
)
ROUND_SECONDS = Histogram(
    "lockkeeper_settle_round_seconds", "Duration of one settling transaction.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5),
)  # fmt: skip
WAITING = Gauge("lockkeeper_reports_waiting", "Reports that wait for their round.")
HELD_BYTES = Gauge("lockkeeper_callback_held_bytes", "Bytes of bodies in memory.")
CLOCK_OFFSET_AGE = Gauge("lockkeeper_clock_read_timestamp_seconds", "When the database's clock was last read.")
