from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import asyncpg

from services.console.loops import Count
from services.console.storage.totals import TotalsStorage
from shared.db.statements import load
from tests.conftest import TestDatabase

_TASKS = load("services.console.storage", "tasks.sql")
_NOTIFIER = load("services.notifier")


async def plan_of(owner: asyncpg.Connection, sql: str, *args: Any) -> tuple[str, int]:
    """The plan as text, and how many rows its largest step read."""
    explained = await owner.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *args)
    plan = json.loads(explained)[0]["Plan"]

    def widest(node: dict[str, Any]) -> int:
        read = int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        return max([read, *(widest(each) for each in node.get("Plans", []))])

    return json.dumps(plan), widest(plan)


async def fill(database: TestDatabase, *, ended: int, waiting: int, every: timedelta) -> None:
    """Tasks that came one after the other, the newest of them waiting, and the totals of them all."""
    await database.owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('reader', 'job')")
    await database.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, status, created_at, finished_at) SELECT 'reader', "
        "CASE WHEN n > $1 THEN 'completed' ELSE 'enqueued' END, now() - n * $3::interval, CASE WHEN n > $1 THEN now() END "
        "FROM generate_series(1, $1::int + $2::int) n",
        waiting, ended, every,
    )  # fmt: skip
    await database.owner.execute("VACUUM ANALYZE lockkeeper.tasks")
    pool = await database.open("console")
    loop = Count(TotalsStorage(pool), walk_every_seconds=0)
    while await loop.run_once():
        pass
    await pool.close()


async def test_lists_stay_on_their_index_among_many_tasks(database: TestDatabase) -> None:
    owner = database.owner
    await fill(database, ended=60_000, waiting=50, every=timedelta(seconds=1))
    nothing = [None] * 8
    middle = await owner.fetchrow(
        "SELECT created_at, id FROM lockkeeper.tasks ORDER BY created_at OFFSET 30000 LIMIT 1"
    )
    assert middle is not None
    for before in ((None, None), (middle["created_at"], middle["id"])):
        text, widest = await plan_of(owner, _TASKS["list_tasks"].sql, *nothing, *before, 50)
        assert "tasks_by_age" in text
        assert widest <= 2600, "a page costs what a page holds, however deep it is"
    text, _ = await plan_of(owner, _NOTIFIER["list_recently_changed"].sql, 60.0)
    assert "tasks_by_age" in text
    started = time.perf_counter()
    row = await owner.fetchrow(_TASKS["summarise_tasks"].sql, *nothing)
    assert row is not None and (row["completed"], row["enqueued"]) == (60000, 50)
    assert not row["is_exact"], "the cells were asked"
    print(f"summary of 60,050 tasks: {time.perf_counter() - started:.3f} s")


async def test_a_summary_reads_no_more_of_a_long_queue_than_its_oldest_task(database: TestDatabase) -> None:
    owner = database.owner
    await fill(database, ended=20_000, waiting=10_000, every=timedelta(seconds=9))
    read = (
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
        "WHERE relid = 'lockkeeper.tasks'::regclass"
    )
    async with owner.transaction():
        row = await owner.fetchrow(_TASKS["summarise_tasks"].sql, *[None] * 8)
        assert row is not None and row["enqueued"] == 10000
        oldest = await owner.fetchval("SELECT min(created_at) FROM lockkeeper.tasks WHERE status = 'enqueued'")
        assert row["oldest_waiting_at"] == oldest
    async with owner.transaction():
        before = await owner.fetchval(read)
        await owner.fetchrow(_TASKS["summarise_tasks"].sql, *[None] * 8)
        # 5,000 to see whether they are few, and an hour's.
        assert await owner.fetchval(read) - before < 7000
