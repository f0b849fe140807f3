"""Metrics of the sweeper, among them those that are read from tables: exported once, by the duty's holder."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

LEASES_EXPIRED = Counter("lockkeeper_leases_expired_total", "Expired leases by what was found.", ["agent", "finding"])
DUTY_HELD = Gauge("lockkeeper_duty_held", "1 while this replica holds the duty.", ["duty"])
LAST_SWEEP = Gauge("lockkeeper_last_sweep_timestamp_seconds", "When the last sweep ended.")

TASKS = Gauge("lockkeeper_tasks", "Tasks that are not yet terminal.", ["status", "agent"])
OLDEST_WAITING = Gauge("lockkeeper_oldest_waiting_seconds", "Age of the oldest task that may start.", ["agent"])
HEADROOM = Gauge("lockkeeper_agent_headroom", "What an agent may still take now.", ["agent", "limit"])
