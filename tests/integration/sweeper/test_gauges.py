"""What the sweeper reads from tables: once, by the holder of the duty, and the figure that scales dispatchers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

from services.sweeper.loops import DatabaseGaugesLoop, GaugesLoop
from services.sweeper.settings import SweeperSettings
from services.sweeper.storage import SweeperStorage
from shared.contract.errors import TransientError
from shared.db.pool import Database
from shared.testing.rows import make_agent, make_tasks
from tests.conftest import TestDatabase

SETTINGS = SweeperSettings()


@pytest.fixture
async def pool(database: TestDatabase) -> AsyncIterator[Database]:
    pool = await database.open("sweeper")
    yield pool
    await pool.close()


async def read(pool: Database) -> None:
    await GaugesLoop(SweeperStorage(pool, "gauges"), SETTINGS).run_once()


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


@pytest.mark.parametrize(
    ("settings", "tasks", "admitted"),
    [
        ({}, {"count": 30}, 30),
        ({"max_concurrent_tasks": 4}, {"count": 30}, 4),
        ({"max_concurrent_tasks": 50}, {"count": 30}, 30),
        ({"max_concurrent_tasks": 0}, {"count": 30}, 0),
        ({"max_tpm": 1_000}, {"count": 30, "estimated_tokens": 300}, 3),
        ({"max_tpm": 1_000, "max_concurrent_tasks": 2}, {"count": 30, "estimated_tokens": 300}, 2),
        # Expected to take ten minutes: only a tenth of its tokens falls into each.
        ({"max_tpm": 1_000, "expected_seconds": 600}, {"count": 30, "estimated_tokens": 1_000}, 10),
        # Beyond the whole budget, it runs alone.
        ({"max_tpm": 1_000}, {"count": 30, "estimated_tokens": 5_000}, 1),
        ({"max_tpm": 0}, {"count": 30, "estimated_tokens": 1}, 0),
        ({"paused": True}, {"count": 30}, 0),
        ({}, {"count": 1_500}, 1_000),
    ],
)
async def test_dispatchable_is_what_the_limits_would_admit_now(
    database: TestDatabase, pool: Database, settings: dict[str, Any], tasks: dict[str, Any], admitted: int
) -> None:
    await make_agent(database.owner, **settings)
    await make_tasks(database.owner, **tasks)
    await read(pool)
    assert value("lockkeeper_dispatchable_tasks") == admitted
    assert value("lockkeeper_agent_dispatchable_tasks", agent="parser") == admitted


async def test_dispatchable_adds_up_over_agents_and_a_cooldown_takes_its_agent_out(
    database: TestDatabase, pool: Database
) -> None:
    for name in ("one", "two"):
        await make_agent(database.owner, name, max_concurrent_tasks=5)
        await make_tasks(database.owner, 20, agent=name)
    await read(pool)
    assert value("lockkeeper_dispatchable_tasks") == 10
    await database.owner.execute(
        "UPDATE lockkeeper.agents SET cooldown_until = now() + interval '1 hour' WHERE name = 'two'"
    )
    await read(pool)
    assert value("lockkeeper_dispatchable_tasks") == 5


async def test_o02_a_standby_exports_nothing_that_a_sum_would_double(database: TestDatabase, pool: Database) -> None:
    await make_agent(database.owner, max_concurrent_tasks=3)
    await make_tasks(database.owner, 100)
    await read(pool)
    assert value("lockkeeper_tasks", status="enqueued", agent="parser") == 100
    assert value("lockkeeper_agent_limit", agent="parser", limit="concurrency") == 3
    await GaugesLoop(SweeperStorage(pool, "standby"), SETTINGS).run_once()
    assert value("lockkeeper_tasks", status="enqueued", agent="parser") is None
    assert value("lockkeeper_dispatchable_tasks") == 0


async def test_what_is_owed_is_counted(database: TestDatabase, pool: Database) -> None:
    await make_agent(database.owner)
    await make_tasks(
        database.owner, 3, status="processing", locked_by="d", attempt=1,
        lease_expires_at=await database.owner.fetchval("SELECT now() - interval '5 minutes'"),
    )  # fmt: skip
    await database.owner.execute(
        "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at) "
        "SELECT lockkeeper.uuid7(), lockkeeper.uuid7(), 'parser', 1, 'completed', now(), now() - interval '2 hours'"
    )
    await database.owner.execute(
        "INSERT INTO lockkeeper.replicas (id, service, info) VALUES "
        "('a', 'dispatcher', '{\"listener\": \"live\"}'), ('b', 'dispatcher', '{\"listener\": \"polling\"}'), "
        "('c', 'sweeper', '{\"listener\": null}')"
    )
    await database.owner.execute(
        "INSERT INTO lockkeeper.replicas (id, service, heartbeat_at) VALUES ('gone', 'dispatcher', now() - interval '1 hour')"
    )
    await read(pool)
    assert value("lockkeeper_leases_overdue") == 3
    assert value("lockkeeper_costs_pending") == 1
    assert value("lockkeeper_cost_pending_seconds") == pytest.approx(7200, abs=60)
    assert value("lockkeeper_replicas", service="dispatcher", hears="live") == 1
    assert value("lockkeeper_replicas", service="dispatcher", hears="polling") == 1
    assert value("lockkeeper_replicas", service="sweeper", hears="none") == 1


async def test_the_database_says_how_near_it_is_to_its_own_limits(database: TestDatabase, pool: Database) -> None:
    await make_agent(database.owner)
    await make_tasks(database.owner, 50)
    await database.owner.execute("ANALYZE lockkeeper.tasks")
    await DatabaseGaugesLoop(SweeperStorage(pool, "gauges"), SETTINGS).run_once()
    assert value("lockkeeper_database_connection_limit") == 150
    connections = value("lockkeeper_database_connections")
    assert connections is not None and 2 <= connections <= 150
    assert (value("lockkeeper_database_xid_age") or 0) > 0
    assert (value("lockkeeper_database_bytes") or 0) > 1_000_000
    assert value("lockkeeper_table_dead_rows", table="lockkeeper.tasks") is not None


async def test_o05_a_scrape_never_asks_the_database_and_says_how_old_its_figures_are(
    database: TestDatabase, pool: Database
) -> None:
    await make_agent(database.owner)
    await make_tasks(database.owner, 7)
    await read(pool)
    sampled = value("lockkeeper_sample_timestamp_seconds")
    await pool.close()
    with pytest.raises(TransientError):
        await read(pool)
    started = time.monotonic()
    text = generate_latest().decode()
    assert time.monotonic() - started < 0.2
    assert 'lockkeeper_tasks{agent="parser",status="enqueued"} 7.0' in text
    assert value("lockkeeper_sample_timestamp_seconds") == sampled
