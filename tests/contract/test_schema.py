from __future__ import annotations

import asyncpg
import pytest

from shared.contract.lifecycle import LEGAL_MOVES, TaskStatus
from shared.contract.ownership import SCHEMAS
from tests.conftest import TestDatabase


async def test_uuid7_carries_its_time_version_and_variant(database: TestDatabase) -> None:
    row = await database.owner.fetchrow(
        "SELECT id, extract(epoch FROM clock_timestamp()) * 1000 AS now FROM lockkeeper.uuid7() AS id"
    )
    assert row is not None
    assert row["id"].version == 7
    assert row["id"].variant == "specified in RFC 4122"
    assert abs(int(row["id"].hex[:12], 16) - float(row["now"])) < 5_000


@pytest.mark.parametrize("target", list(TaskStatus))
@pytest.mark.parametrize("source", list(TaskStatus))
async def test_the_database_allows_exactly_the_declared_moves(
    database: TestDatabase, source: TaskStatus, target: TaskStatus
) -> None:
    if source == target:
        return
    await database.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, status, finished_at, lease_expires_at) VALUES ('a', $1::text, "
        "CASE WHEN $1 IN ('completed', 'failed', 'cancelled') THEN now() END, CASE $1 WHEN 'processing' THEN now() END)",
        source.value,
    )
    move = database.owner.execute(
        "UPDATE lockkeeper.tasks SET status = $1::text, version = version + 1, "
        "finished_at = CASE WHEN $1 IN ('completed', 'failed', 'cancelled') THEN now() END, "
        "lease_expires_at = CASE $1 WHEN 'processing' THEN now() END",
        target.value,
    )
    if (source, target) in LEGAL_MOVES:
        await move
    else:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await move
        assert refused.value.sqlstate == "LK001"


async def test_a05_every_instant_knows_its_zone(database: TestDatabase) -> None:
    naive = await database.owner.fetch(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = ANY ($1) AND data_type = 'timestamp without time zone'",
        list(SCHEMAS),
    )
    assert naive == []


@pytest.mark.parametrize("instant", ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC"])
async def test_a09_no_instant_is_kept_that_a_program_cannot_hold(database: TestDatabase, instant: str) -> None:
    for statement in (
        "INSERT INTO lockkeeper.tasks (agent, available_at) VALUES ('a', $1::text::timestamptz)",
        (
            "INSERT INTO lockkeeper.model_prices (model, input_price, output_price, valid_from) "
            "VALUES ('m', 1, 1, $1::text::timestamptz)"
        ),
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await database.owner.execute(statement, instant)


async def test_q07_what_heartbeats_write_stands_in_no_index(database: TestDatabase) -> None:
    """So that each of them is a heap-only update, and a long snapshot makes no index grow."""
    written = ["lease_expires_at", "pages_done", "pages_total", "step"]
    indexed = await database.owner.fetch(
        "SELECT i.indexrelid::regclass AS index, a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
        "WHERE i.indrelid = 'lockkeeper.tasks'::regclass AND a.attname = ANY ($1) "
        "AND (a.attnum = ANY (i.indkey) OR pg_get_expr(i.indpred, i.indrelid) ~ ('\\m' || a.attname || '\\M'))",
        written,
    )
    assert indexed == []
