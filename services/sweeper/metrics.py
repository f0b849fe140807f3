"""Metrics of the sweeper, among them those that are read from tables: exported once, by the duty's holder."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

LEASES_EXPIRED = Counter("lockkeeper_leases_expired_total", "Expired leases by what was found.", ["agent", "finding"])
DUTY_HELD = Gauge("lockkeeper_duty_held", "1 while this replica holds the duty.", ["duty"])
LAST_SWEEP = Gauge("lockkeeper_last_sweep_timestamp_seconds", "When the last sweep ended.")
REMOVED = Counter("lockkeeper_rows_removed_total", "Rows of finished tasks that were kept long enough.", ["table"])

SAMPLED = Gauge("lockkeeper_sample_timestamp_seconds", "When the table-derived metrics were last read.")

DISPATCHABLE = Gauge("lockkeeper_dispatchable_tasks", "Waiting tasks that the limits would admit now; scale on this.")
AGENT_DISPATCHABLE = Gauge(
    "lockkeeper_agent_dispatchable_tasks", "Waiting tasks that the agent's limits would admit now.", ["agent"]
)
TASKS = Gauge("lockkeeper_tasks", "Tasks that are not yet terminal.", ["status", "agent"])
OLDEST_WAITING = Gauge("lockkeeper_oldest_waiting_seconds", "Age of the oldest task that may start.", ["agent"])
HEADROOM = Gauge("lockkeeper_agent_headroom", "What an agent may still take now.", ["agent", "limit"])
LIMIT = Gauge("lockkeeper_agent_limit", "What an agent may take at most.", ["agent", "limit"])
PAUSED = Gauge("lockkeeper_agent_paused", "1 while an operator holds the agent.", ["agent"])

LEASES_OVERDUE = Gauge("lockkeeper_leases_overdue", "Leases past their end that no sweep has dealt with yet.")
RESULTS_WAITING = Gauge("lockkeeper_recovered_results_waiting", "Results found without a callback, not yet settled.")
COSTS_PENDING = Gauge("lockkeeper_costs_pending", "Finished attempts whose cost is not known yet.")
COST_PENDING_AGE = Gauge("lockkeeper_cost_pending_seconds", "Age of the oldest finished attempt without its cost.")
REPLICAS = Gauge("lockkeeper_replicas", "Living processes by service and by how they hear.", ["service", "hears"])

XID_AGE = Gauge("lockkeeper_database_xid_age", "Transactions since the oldest row that is not frozen.")
DATABASE_BYTES = Gauge("lockkeeper_database_bytes", "Size of the database.")
CONNECTIONS = Gauge("lockkeeper_database_connections", "Sessions of all clients of the server.")
CONNECTION_LIMIT = Gauge("lockkeeper_database_connection_limit", "Sessions that the server allows.")
TRANSACTION_AGE = Gauge("lockkeeper_database_transaction_seconds", "Age of the oldest open transaction that is seen.")
LIVE_ROWS = Gauge("lockkeeper_table_live_rows", "Rows by the statistics.", ["table"])
DEAD_ROWS = Gauge("lockkeeper_table_dead_rows", "Row versions that wait for vacuum, by the statistics.", ["table"])

OF_AGENTS = (TASKS, OLDEST_WAITING, HEADROOM, LIMIT, PAUSED, AGENT_DISPATCHABLE)
BY_LABEL = (*OF_AGENTS, REPLICAS, LIVE_ROWS, DEAD_ROWS)
SINGLE = (
    DISPATCHABLE,
    LEASES_OVERDUE,
    RESULTS_WAITING,
    COSTS_PENDING,
    COST_PENDING_AGE,
    XID_AGE,
    DATABASE_BYTES,
    CONNECTIONS,
    CONNECTION_LIMIT,
    TRANSACTION_AGE,
)


def forget_tables() -> None:
    """Export nothing of the tables: another replica does, and a sum over both would be a double."""
    for gauge in BY_LABEL:
        gauge.clear()
    for gauge in SINGLE:
        gauge.set(0)
