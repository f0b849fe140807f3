"""Metrics that every process has; a service's own stand in its `metrics.py`."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

# When a counter began is a series of its own for each, and nobody here asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]

LOOP_SECONDS = Histogram(
    "lockkeeper_loop_seconds", "Duration of one round of a loop.", ["loop"],
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)  # fmt: skip
LOOP_ROUNDS = Counter("lockkeeper_loop_rounds_total", "Rounds of a loop by how they ended.", ["loop", "outcome"])
LOOP_LAST_SUCCESS = Gauge("lockkeeper_loop_last_success_timestamp_seconds", "When a loop last ended well.", ["loop"])
LISTENER_CONNECTED = Gauge("lockkeeper_listener_connected", "1 while notes are proved to arrive, else 0.")
LISTENER_PROOF_AGE = Gauge("lockkeeper_listener_proof_age_seconds", "Age of the listener's last round trip.")
POOL_TIMEOUTS = Gauge("lockkeeper_pool_timeouts", "Waits for a database connection that reached their deadline.")
DATABASE_UP = Gauge("lockkeeper_database_up", "1 when the last heartbeat reached the database, else 0.")
ADOPTED = Gauge("lockkeeper_database_adopted", "1 where this process may act; 0 on a copy that nobody adopted.")
CREDENTIAL_SECONDS = Gauge("lockkeeper_credential_seconds_left", "Life left of the cached database credential.")
CREDENTIAL_AGE = Gauge("lockkeeper_credential_age_seconds", "Since when the cached database credential is in use.")
CREDENTIAL_RENEWAL = Gauge("lockkeeper_credential_renewal_seconds", "Time until the database credential is renewed.")
CREDENTIAL_FAILURES = Gauge("lockkeeper_credential_failures", "Renewals of the database credential that failed.")
CREDENTIAL_REFUSALS = Gauge("lockkeeper_credential_refusals", "Database credentials that ended before their time.")
FENCED_WRITES = Counter(
    "lockkeeper_fenced_writes_total", "Writes that carried a fencing token, by result.", ["verb", "outcome"]
)
EVENT_LOOP_LAG = Histogram(
    "lockkeeper_event_loop_lag_seconds", "How late the event loop runs what is due.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
)  # fmt: skip
HTTP_REQUESTS = Counter("lockkeeper_http_requests_total", "Requests by route and answer.", ["route", "status"])
HTTP_SECONDS = Histogram(
    "lockkeeper_http_request_seconds", "From request to the answer's last byte.", ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120),
)  # fmt: skip
