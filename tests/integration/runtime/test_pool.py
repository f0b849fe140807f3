"""The pool: deadlines, healing, credentials that rotate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from shared.contract.errors import RejectedError, TransientError
from shared.db.connecting import connect
from shared.db.credentials import RotatingPassword, Token
from shared.db.pool import Connection, Database, only_reads
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.support.postgres import TEMPLATE, PostgresServer


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = PostgresServer.create()
    try:
        asyncio.run(server.make_template())
        yield server
    finally:
        server.destroy()


@asynccontextmanager
async def strict_logins(database: TestDatabase) -> AsyncIterator[None]:
    """The server checks the password of the role `a03`."""
    rules = database.server.data / "pg_hba.conf"
    before = rules.read_text()

    async def load(text: str) -> None:
        since = await database.owner.fetchval("SELECT clock_timestamp()")
        rules.write_text(text)
        await database.owner.execute("SELECT pg_reload_conf()")

        async def is_loaded() -> bool:
            fresh = await connect(database.url(), name="look")
            loaded_at = await fresh.fetchval("SELECT pg_conf_load_time()")
            await fresh.close()
            return bool(loaded_at > since)

        await until(is_loaded)

    await load("host all a03 127.0.0.1/32 scram-sha-256\n" + before)
    try:
        yield
    finally:
        await load(before)


async def test_a02_a_busy_pool_answers_within_its_deadline(database: TestDatabase) -> None:
    pool = Database(database.url("console"), name="a02", size=2, acquire_seconds=0.3)
    await pool.open()
    async with pool.connection(), pool.connection():
        started = time.monotonic()
        with pytest.raises(TransientError):
            await pool.fetchval("SELECT 1")
        assert time.monotonic() - started < 3
    assert pool.waits_timed_out == 1
    assert await pool.fetchval("SELECT 1") == 1
    await pool.close()


async def test_a01_fifty_callers_never_share_a_connection(database: TestDatabase) -> None:
    pool = Database(database.url("console"), name="a01", size=5, acquire_seconds=10)
    await pool.open()
    answers = await asyncio.gather(*(pool.fetchval("SELECT $1::int FROM pg_sleep(0.01)", n) for n in range(50)))
    assert answers == list(range(50))
    await pool.close()


async def test_a_pool_heals_when_its_connections_were_killed(database: TestDatabase) -> None:
    pool = await database.open("console", size=2)
    await pool.fetchval("SELECT 1")
    await database.owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test-console'"
    )

    async def answers() -> bool:
        try:
            return bool(await pool.fetchval("SELECT 1") == 1)
        except TransientError:
            return False

    assert await answers() or await answers()
    await pool.close()


async def test_a_session_that_dies_in_the_hands_of_a_transaction_is_no_fault_of_ours(database: TestDatabase) -> None:
    pool = await database.open("console", size=1)
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test-console'"

    async def work(connection: Connection) -> int:
        if not killed:
            killed.append(await database.owner.fetchval(kill))
        return int(await connection.fetchval("SELECT 1"))

    killed: list[bool] = []
    with pytest.raises(TransientError):
        await pool.atomically(work)
    killed.clear()
    assert await pool.atomically(work, repeatable=True) == 1
    await pool.close()


async def test_g04_a_deadlock_runs_the_whole_transaction_again(database: TestDatabase) -> None:
    await database.owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('a', 'a'), ('b', 'b')")
    pool = await database.open("console")
    tries = 0
    both_hold = asyncio.Barrier(2)

    async def work(first: str, second: str) -> None:
        async def cross(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            await connection.execute("UPDATE lockkeeper.agents SET description = 'x' WHERE name = $1", first)
            if tries <= 2:
                await both_hold.wait()
            await connection.execute("UPDATE lockkeeper.agents SET description = 'x' WHERE name = $1", second)

        await pool.atomically(cross)

    await asyncio.gather(work("a", "b"), work("b", "a"))
    assert tries == 3
    await pool.close()


async def test_a_refused_value_is_no_transient_fault(database: TestDatabase) -> None:
    pool = await database.open("console")
    with pytest.raises(RejectedError):
        await pool.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('NOT A NAME', 'x')")
    await pool.close()


async def test_a03_every_connect_asks_for_a_token_and_renewal_is_a_single_flight() -> None:
    minted = 0

    async def mint() -> Token:
        nonlocal minted
        minted += 1
        await asyncio.sleep(0)
        return Token(f"token-{minted}", 3600)

    password = RotatingPassword(mint)
    assert set(await asyncio.gather(*(password() for _ in range(20)))) == {"token-1"}
    password.forget()
    assert await password() == "token-2"


async def test_a03_a_failing_endpoint_is_no_trouble_while_the_old_token_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("shared.db.credentials.time.monotonic", lambda: now)
    fails = False

    async def mint() -> Token:
        if fails:
            raise TransientError("the endpoint is away")
        return Token("good", 100)

    password = RotatingPassword(mint)
    assert await password() == "good"
    fails = True
    now += 80
    assert await password() == "good"
    await password.renew()
    assert await password() == "good"
    assert password.failures == 1
    now += 21
    with pytest.raises(TransientError):
        await password()
    fails = False
    assert await password() == "good"


async def test_a03_nobody_waits_for_a_renewal_while_the_old_token_lasts() -> None:
    answers = asyncio.Event()
    minted = 0

    async def mint() -> Token:
        nonlocal minted
        minted += 1
        if minted > 1:
            await answers.wait()
        return Token(f"token-{minted}", 0.4)

    password = RotatingPassword(mint)
    assert await password() == "token-1"
    await until(lambda: password.seconds_to_renewal == 0, seconds=2, every=0.01)
    assert password.seconds_left > 0
    assert await asyncio.wait_for(password(), 0.05) == "token-1"
    with pytest.raises(TimeoutError):  # a caller that gives up leaves the flight to the others
        await asyncio.wait_for(password.renew(), 0.01)
    answers.set()
    await password.renew()
    assert await password() == "token-2"
    assert minted == 2


async def test_a03_a_refused_login_drops_the_token_and_asks_once_more(database: TestDatabase) -> None:
    await database.owner.execute("CREATE ROLE a03 LOGIN PASSWORD 'right'")
    try:
        given = ["ended early", "right"]

        async def mint() -> Token:
            return Token(given.pop(0), 3600)

        password = RotatingPassword(mint)
        async with strict_logins(database):
            pool = Database(f"postgresql://a03@127.0.0.1:{database.server.port}/{database.name}", password, name="a03")
            await pool.open()
            assert await pool.fetchval("SELECT 1") == 1
            assert password.refusals == 1
            await pool.close()
    finally:
        await database.owner.execute("DROP ROLE a03")


async def test_no_connection_is_kept_past_its_life_busy_idle_or_listening(database: TestDatabase) -> None:
    life = 1.2
    pool = Database(database.url("console"), name="short", size=4, life_seconds=life)
    await pool.open()
    await asyncio.gather(*(pool.fetchval("SELECT pg_sleep(0.05)") for _ in range(4)))
    oldest = 0.0
    seen: set[int] = set()
    for _ in range(40):
        await pool.fetchval("SELECT pg_sleep(0.05)")
        for row in await database.owner.fetch(
            "SELECT pid, extract(epoch FROM clock_timestamp() - backend_start)::float8 AS age"
            "  FROM pg_stat_activity WHERE application_name = 'short'"
        ):
            seen.add(row["pid"])
            oldest = max(oldest, row["age"])
    assert oldest < life
    assert len(seen) > 4
    await pool.close()


async def test_g06_a_caller_waits_out_a_restart_within_its_deadline(own_server: PostgresServer) -> None:
    pool = Database(own_server.url("lockkeeper_console", TEMPLATE), name="g06", size=3, acquire_seconds=20)
    await pool.open()
    await pool.fetchval("SELECT 1")
    await asyncio.to_thread(own_server.stop)
    asked = [asyncio.create_task(pool.fetchval("SELECT 1")) for _ in range(5)]
    starting = asyncio.create_task(asyncio.to_thread(own_server.start))
    assert await asyncio.gather(*asked) == [1] * 5
    await starting
    await asyncio.to_thread(own_server.stop)
    started = time.monotonic()
    impatient = Database(own_server.url("lockkeeper_console", TEMPLATE), name="g06", acquire_seconds=1)
    await impatient.open()
    with pytest.raises(TransientError):
        await impatient.fetchval("SELECT 1")
    assert time.monotonic() - started < 2
    await impatient.close()
    await asyncio.to_thread(own_server.start)
    assert await pool.fetchval("SELECT 1") == 1
    await pool.close()


async def test_g06_a_server_that_turned_read_only_is_left_as_soon_as_another_takes_writes(
    database: TestDatabase,
) -> None:
    pool = Database(database.url("console"), name="g06", size=2, acquire_seconds=10)
    await pool.open()
    insert = "INSERT INTO lockkeeper.agents (name, target) VALUES ($1, 't')"
    await pool.execute(insert, "before")
    flip = f"ALTER DATABASE {database.name} SET default_transaction_read_only = "
    await database.owner.execute(f"{flip} on")
    await pool.renew_connections()
    assert await pool.fetchval("SELECT count(*) FROM lockkeeper.agents") == 1
    writing = asyncio.create_task(pool.execute(insert, "meanwhile"))
    in_a_transaction = asyncio.create_task(pool.atomically(lambda connection: connection.execute(insert, "whole")))
    refusals = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'g06'"
    await until(lambda: database.owner.fetchval(refusals))
    assert not writing.done()
    await database.owner.execute(f"SET default_transaction_read_only = off; {flip} off")
    await asyncio.gather(writing, in_a_transaction)
    assert await pool.fetchval("SELECT count(*) FROM lockkeeper.agents") == 3
    await pool.close()


@pytest.mark.parametrize(
    ("sql", "is_read"),
    [
        ("SELECT 1", True),
        ("-- name: x\n-- insert nothing\nWITH a AS (SELECT 1) SELECT * FROM a", True),
        ("WITH a AS (UPDATE t SET x = 1 RETURNING 1) SELECT * FROM a", False),
        ("SELECT set_config('a', 'b', true)", False),
        ("SELECT pg_notify('a', 'b')", False),
        ("INSERT INTO t SELECT 1", False),
        ("SELECT updated_at FROM t", True),
    ],
)
def test_only_what_surely_reads_is_asked_twice(sql: str, is_read: bool) -> None:
    assert only_reads(sql) is is_read


async def test_q07_a_transaction_whose_process_stands_still_gives_its_locks_back(database: TestDatabase) -> None:
    await database.owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('a', 'a')")
    frozen = Database(database.url("console"), name="frozen", idle_transaction_seconds=0.2)
    await frozen.open()
    change = "UPDATE lockkeeper.agents SET description = 'x' WHERE name = 'a'"

    async def work(connection: Connection) -> None:
        await connection.execute(change)
        # As long as this process is silent; another one gets what it holds.
        await asyncio.wait_for(database.owner.execute(change), 10)
        await connection.execute(change)

    with pytest.raises(TransientError):
        await frozen.atomically(work)
    assert await frozen.fetchval("SELECT 1") == 1
    await frozen.close()


async def test_a06_a_changed_schema_is_no_trouble_for_connections_that_know_the_old_one(database: TestDatabase) -> None:
    await database.owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('a', 'a')")
    pool = await database.open("console", size=1)
    upsert = (
        "INSERT INTO lockkeeper.tasks (agent, idempotency_key) VALUES ('a', $1) "
        "ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
    )

    async def everything(key: str) -> None:
        await pool.execute(upsert, key)
        await pool.fetch("SELECT * FROM lockkeeper.documents")
        await pool.atomically(lambda connection: connection.fetch("SELECT * FROM lockkeeper.tasks"))

    await everything("before")
    await database.owner.execute(
        "ALTER TABLE lockkeeper.tasks ADD COLUMN newer integer; "
        "ALTER TABLE lockkeeper.documents ALTER COLUMN uploaded_by TYPE varchar(100); "
        "DROP INDEX lockkeeper.tasks_idempotency; "
        "CREATE UNIQUE INDEX tasks_idempotency ON lockkeeper.tasks (idempotency_key) WHERE idempotency_key IS NOT NULL"
    )
    await everything("after")
    assert await pool.fetchval("SELECT count(*) FROM lockkeeper.tasks") == 2
    await pool.close()
