"""Migrations beside running work: nobody waits behind one, and one that cannot have its locks gives up in words."""

from __future__ import annotations

import asyncio
import time

import pytest

from shared.contract.errors import TransientError
from shared.db import migrate as module
from shared.db.connecting import connect
from shared.db.migrate import Migration, migrate
from shared.testing.rows import make_agent, make_tasks
from shared.testing.wait import until
from tests.conftest import TestDatabase

NUMBER = 9001
LOCK = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
WORKING = """
SELECT pid FROM pg_stat_activity
 WHERE query LIKE '%pg_sleep(20)' AND datname = current_database() AND pid <> pg_backend_pid()
"""


def add(monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    found = [*module.migrations(), Migration(NUMBER, f"{NUMBER}_later.pre.sql", sql)]
    monkeypatch.setattr(module, "migrations", lambda: found)


async def test_k07_work_flows_on_while_a_migration_waits_for_a_long_reader(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, "ALTER TABLE lockkeeper.tasks ADD COLUMN later integer")
    await make_agent(database.owner)
    reader = await connect(database.url(), name="reader")
    reading = reader.transaction(isolation="repeatable_read")
    await reading.start()
    await reader.fetchval("SELECT count(*) FROM lockkeeper.tasks")
    migrating = asyncio.create_task(migrate(database.url()))
    longest = 0.0
    end = time.monotonic() + 7
    while time.monotonic() < end:
        started = time.monotonic()
        await make_tasks(database.owner, 1)
        longest = max(longest, time.monotonic() - started)
    assert not migrating.done()
    await reading.rollback()
    await reader.close()
    assert await migrating == 1
    assert longest < 5, "nobody waits longer than the migration's lock timeout"
    assert await database.owner.fetchval("SELECT count(later) = 0 FROM lockkeeper.tasks")


async def test_k07_a_migration_that_never_gets_its_locks_gives_up_and_leaves_nothing(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, "ALTER TABLE lockkeeper.tasks ADD COLUMN later integer")
    monkeypatch.setattr(module, "_LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr(module, "_LOCK_TRIES", 2)
    reader = await connect(database.url(), name="reader")
    async with reader.transaction():
        await reader.fetchval("SELECT count(*) FROM lockkeeper.tasks")
        with pytest.raises(TransientError, match="could not get its locks"):
            await migrate(database.url())
    await reader.close()
    assert await migrate(database.url()) == 1


async def test_k07_an_index_is_built_beside_writers_outside_of_a_transaction(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(
        monkeypatch,
        "-- transaction: off\n-- Two statements; the first takes away what a broken run left.\n"
        "DROP INDEX CONCURRENTLY IF EXISTS lockkeeper.tasks_later;\n"
        "CREATE INDEX CONCURRENTLY tasks_later ON lockkeeper.tasks (step);\n",
    )
    await make_agent(database.owner)
    assert await migrate(database.url()) == 1
    assert await database.owner.fetchval(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'lockkeeper.tasks_later'::regclass"
    )
    assert await database.owner.fetchval(
        "SELECT tableowner = 'lockkeeper_owner' FROM pg_tables WHERE tablename = 'tasks'"
    )
    assert await migrate(database.url()) == 0


async def test_k08_many_migrators_at_once_apply_each_file_once(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, "CREATE TABLE lockkeeper.later (n integer); SELECT pg_sleep(0.5)")
    assert sorted(await asyncio.gather(*(migrate(database.url()) for _ in range(3)))) == [0, 0, 1]


async def test_g02_a_migrator_whose_session_is_killed_stops_and_the_next_one_works(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock lives on the session that does the work: who loses the one loses the other."""
    found = module.migrations()
    add(monkeypatch, "CREATE TABLE lockkeeper.later (n integer); SELECT pg_sleep(20)")
    first = asyncio.create_task(migrate(database.url()))
    pid = await until(lambda: database.owner.fetchval(WORKING))
    holders = await database.owner.fetch(f"SELECT pid FROM pg_locks WHERE {LOCK} AND granted")
    assert [row["pid"] for row in holders] == [pid], "one session locks and works"
    second = asyncio.create_task(migrate(database.url()))
    await until(lambda: database.owner.fetchval(f"SELECT count(*) FROM pg_locks WHERE {LOCK} AND NOT granted"))
    quick = Migration(NUMBER, "quick.pre.sql", "CREATE TABLE lockkeeper.later (n integer)")
    monkeypatch.setattr(module, "migrations", lambda: [*found, quick])
    await database.owner.fetchval("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(TransientError):
        await first
    assert await second == 1
