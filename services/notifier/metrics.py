"""Metrics of the notifier. Numbers of this process; none carries an id."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CLIENTS = Gauge("lockkeeper_sse_clients", "Browsers that this replica streams to.")
CLIENTS_REFUSED = Counter("lockkeeper_sse_clients_refused_total", "Streams refused because there were too many.")
CLIENTS_OPENED = Counter("lockkeeper_sse_streams_total", "Streams opened, by how they began.", ["began"])
EVENTS = Counter("lockkeeper_sse_events_total", "Events made, each once for all browsers.", ["event"])
OVERFLOWS = Counter("lockkeeper_sse_overflows_total", "Browsers so far behind that they got a snapshot instead.")
READ_SECONDS = Histogram(
    "lockkeeper_sse_read_seconds", "One read of the database for all browsers.", ["read"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)  # fmt: skip
