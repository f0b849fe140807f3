from __future__ import annotations

import asyncpg
import pytest

from shared.contract.lifecycle import LEGAL_MOVES, TaskStatus
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
