"""The pool: deadlines, healing, credentials that rotate."""

from __future__ import annotations

import asyncio
import time

import pytest

from shared.contract.errors import RejectedError, TransientError
from shared.db.credentials import RotatingPassword, Token
from shared.db.pool import Connection, Database
from tests.conftest import TestDatabase


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
    assert password.failures == 1
    now += 21
    with pytest.raises(TransientError):
        await password()
    fails = False
    assert await password() == "good"
