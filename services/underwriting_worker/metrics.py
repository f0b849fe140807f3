"""Metrics of the underwriting worker."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

STEPS = Counter(
    "lockkeeper_underwriting_steps_total", "Attempts of activities by how they ended.", ["activity", "outcome"]
)
STEP_SECONDS = Histogram(
    "lockkeeper_underwriting_step_seconds",
    "Duration of one attempt.",
    ["activity"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 40),
)
PAYLOAD_BYTES = Histogram(
    "lockkeeper_underwriting_payload_bytes",
    "Size of what a tool or the model gave.",
    ["activity"],
    buckets=(256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304),
)
TOKENS = Counter("lockkeeper_underwriting_tokens_total", "Tokens of model calls.", ["model", "kind"])
CONNECTED = Gauge("lockkeeper_underwriting_temporal_connected", "1 while the worker polls Temporal, else 0.")
TRACES_DROPPED = Counter(
    "lockkeeper_underwriting_traces_dropped_total", "Traces that the tracking server did not take."
)
