"""The hot statements stay on their index, whatever the statistics say of a queue that fills and drains.

The plans are those that the services pin: generic, made once per connection. LOCKKEEPER_TEST_ROWS says how many
finished tasks lie in the table; a million is the long form, some minutes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from shared.db.pool import PINNED_PLANS
from tests.conftest import TestDatabase
from tests.support.statements import statements

ROWS = int(os.environ.get("LOCKKEEPER_TEST_ROWS", "20000"))
HOT = frozenset({
    ("dispatcher", "lock_agents"), ("dispatcher", "look_for_work"), ("dispatcher", "claim_tasks"),
    ("dispatcher", "promote_due"), ("dispatcher", "record_runs"), ("dispatcher", "release_attempts"),
    ("dispatcher", "refuse_attempts"), ("dispatcher", "take_over_unsubmitted"), ("dispatcher", "take_cancellations"),
    ("callback_receiver", "complete_attempts"), ("callback_receiver", "lock_reported"),
    ("callback_receiver", "settle_attempts"), ("callback_receiver", "beat_attempts"),
    ("sweeper", "list_overdue"), ("sweeper", "remove_tasks"), ("sweeper", "read_queue_state"),
    ("notifier", "list_queue_state"), ("console", "list_agents"), ("client", "enqueue_tasks"),
})  # fmt: skip
LARGE = frozenset({"tasks", "task_attempts", "task_events"})
OF_WHAT_RUNS_OR_WAITS = frozenset({"tasks_ready", "tasks_deferred", "tasks_processing", "attempts_to_cancel"})
"""Indexes that hold no finished rows: walking one of them from end to end is bounded by the work at hand."""


@pytest.mark.timeout(max(120, ROWS / 1000))
async def test_hot_statements_stay_on_their_index(database: TestDatabase) -> None:
    owner = database.owner
    await owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('parser', 'job')")
    faults = await faults_of_plans(database, "new")
    await owner.execute(
        "INSERT INTO lockkeeper.tasks (id, agent, status, finished_at, attempt, attempt_id) "
        "SELECT id, 'parser', 'completed', now(), 1, id "
        "FROM (SELECT encode(overlay(uuid_send($2::uuid) PLACING int4send(n) FROM 13), 'hex')::uuid AS id "
        "FROM generate_series(1, $1::int) n) made",
        ROWS, await owner.fetchval("SELECT lockkeeper.uuid7()"), timeout=ROWS / 1000 + 60,
    )  # fmt: skip
    await owner.execute(
        "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at, trace_state) "
        "SELECT id, id, 'parser', 1, 'completed', now(), now(), 'absent' FROM lockkeeper.tasks",
        timeout=ROWS / 1000 + 60,
    )
    faults += await faults_of_plans(database, "full, without statistics")
    await owner.execute("VACUUM ANALYZE", timeout=ROWS / 1000 + 60)
    faults += await faults_of_plans(database, "full")
    await owner.execute("INSERT INTO lockkeeper.tasks (agent) SELECT 'parser' FROM generate_series(1, 2000)")
    faults += await faults_of_plans(database, "full, a backlog that the statistics do not know")
    await owner.execute("VACUUM ANALYZE lockkeeper.tasks", timeout=ROWS / 1000 + 60)
    faults += await faults_of_plans(database, "full, with a backlog")
    assert not faults, "\n".join(faults)


async def faults_of_plans(database: TestDatabase, state: str) -> list[str]:
    connection = await asyncpg.connect(database.url(), server_settings=PINNED_PLANS)
    try:
        faults = []
        for owner, _, statement in statements():
            if (owner, statement.name) in HOT:
                plan = json.loads(await pinned_plan(connection, statement.sql))
                faults += [f"{owner}.{statement.name}, {state}: {fault}" for fault in walks(plan[0]["Plan"])]
        return faults
    finally:
        await connection.close()


async def pinned_plan(connection: asyncpg.Connection, sql: str) -> str:
    """The plan of a prepared statement, made without a look at its arguments."""
    places = max(map(int, re.findall(r"\$(\d+)", sql)), default=0)
    await connection.execute(f"PREPARE hot AS {sql}")
    arguments = f"({', '.join(['NULL'] * places)})" if places else ""
    plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot {arguments}")
    await connection.execute("DEALLOCATE hot")
    return str(plan)


def walks(node: dict[str, Any]) -> Iterator[str]:
    """Steps that read a large table, or an index of all its rows, from end to end."""
    kind, table, index = node["Node Type"], node.get("Relation Name"), node.get("Index Name")
    bounded = "Index Cond" in node or index in OF_WHAT_RUNS_OR_WAITS
    scans_index = kind == "Bitmap Index Scan" or (kind in ("Index Scan", "Index Only Scan") and table in LARGE)
    if (kind == "Seq Scan" and table in LARGE) or (scans_index and not bounded):
        yield f"{kind} over the whole of {index or table}"
    for child in node.get("Plans", []):
        yield from walks(child)


async def test_every_hot_statement_is_there() -> None:
    assert {(owner, statement.name) for owner, _, statement in statements()} >= HOT
