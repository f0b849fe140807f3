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
from tests.conftest import TestDatabase

NUMBER = 9001


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
