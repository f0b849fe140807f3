"""The listener under the failures that raise no error."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.contract.channels import PAYLOAD_BYTES, Channel
from shared.db import listener as listening
from shared.db.listener import Listener
from shared.db.notes import Notes, decode, encode
from shared.testing.proxy import TcpProxy
from shared.testing.wait import until
from tests.conftest import TestDatabase


class Heard:
    """What arrived, in order; None means look at everything."""

    def __init__(self) -> None:
        self.notes: list[list[str] | None] = []

    def __call__(self, ids: list[str] | None) -> None:
        self.notes.append(ids)


@pytest.fixture
async def proxy(database: TestDatabase) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy("127.0.0.1", database.server.port)
    await proxy.open()
    yield proxy
    await proxy.close()


def through(proxy: TcpProxy, database: TestDatabase) -> str:
    return database.url("notifier").replace(str(database.server.port), str(proxy.port))


async def test_n01_a_half_open_connection_is_found_and_replaced(
    database: TestDatabase, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(listening, "PROBE_TIMEOUT_SECONDS", 0.5)
    heard = Heard()
    listener = Listener(through(proxy, database), None, {Channel.TASK_CHANGED: heard}, name="n01")
    await listener.open()
    await until(lambda: listener.is_live)
    proxy.silence()
    await until(lambda: not listener.is_live)
    proxy.cut()
    proxy.speak()
    await until(lambda: listener.is_live and listener.connects == 2)
    assert heard.notes == [None, None], "every connect reports: look at everything"
    await database.owner.execute("SELECT pg_notify($1, '[\"a\"]')", Channel.TASK_CHANGED.value)
    await until(lambda: ["a"] in heard.notes)
    await listener.close()


async def test_n01_a_terminated_backend_is_replaced_at_once(database: TestDatabase) -> None:
    heard = Heard()
    listener = Listener(database.url("notifier"), None, {Channel.TASK_CHANGED: heard}, name="terminated")
    await listener.open()
    await until(lambda: listener.is_live)
    await database.owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'terminated'"
    )
    await until(lambda: listener.connects == 2, seconds=5)
    await listener.close()


@pytest.mark.parametrize("payload", ["", "x", '["unfinished', "{}", "7", "y" * 7_999])
async def test_n09_a_strange_payload_means_look_at_everything(database: TestDatabase, payload: str) -> None:
    heard = Heard()
    listener = Listener(database.url("notifier"), None, {Channel.TASK_CHANGED: heard}, name="n09")
    await listener.open()
    await until(lambda: heard.notes == [None])
    await database.owner.execute("SELECT pg_notify($1, $2)", Channel.TASK_CHANGED.value, payload)
    await until(lambda: heard.notes == [None, None])
    await listener.close()


async def test_n09_a_handler_that_raises_does_not_end_the_loop(database: TestDatabase) -> None:
    heard = Heard()

    def moody(ids: list[str] | None) -> None:
        heard(ids)
        if ids == ["bad"]:
            raise ValueError("moody")

    listener = Listener(database.url("notifier"), None, {Channel.TASK_CHANGED: moody}, name="moody")
    await listener.open()
    await until(lambda: heard.notes == [None])
    for each in ('["bad"]', '["good"]'):
        await database.owner.execute("SELECT pg_notify($1, $2)", Channel.TASK_CHANGED.value, each)
    await until(lambda: heard.notes[-1] == ["good"])
    await listener.close()


async def test_n02_notes_stay_small_however_many_ids_they_carry(database: TestDatabase) -> None:
    ids = [f"{number:08d}-{'€' * 20}" for number in range(2_000)]
    payloads = encode(ids)
    assert all(len(each.encode()) <= PAYLOAD_BYTES for each in payloads)
    assert [name for each in payloads for name in decode(each) or []] == ids
    heard = Heard()
    listener = Listener(database.url("notifier"), None, {Channel.TASK_CHANGED: heard}, name="n02")
    await listener.open()
    await until(lambda: heard.notes == [None])
    pool = await database.open("dispatcher")
    notes = Notes(pool)
    await notes.open()
    notes.send(Channel.TASK_CHANGED, ids)
    await until(lambda: sum(len(each or []) for each in heard.notes) == 2_000)
    notes.send(Channel.TASK_CHANGED)
    await until(lambda: heard.notes[-1] is None)
    await notes.close()
    await listener.close()
    await pool.close()


async def test_n06_what_many_writers_say_travels_in_few_notes(database: TestDatabase) -> None:
    heard = Heard()
    listener = Listener(database.url("notifier"), None, {Channel.TASK_CHANGED: heard}, name="n06")
    await listener.open()
    await until(lambda: listener.is_live)
    before = len(heard.notes)
    pool = await database.open("callback_receiver")
    notes = Notes(pool)
    await notes.open()
    for number in range(64):
        notes.send(Channel.TASK_CHANGED, [f"task-{number}"])
    await notes.close()
    await until(lambda: sum(len(ids or ()) for ids in heard.notes) == 64)
    assert len(heard.notes) - before <= 3
    await listener.close()
    await pool.close()


async def test_n08_the_listener_owns_its_connection(database: TestDatabase) -> None:
    pool = await database.open("notifier", size=1)
    heard = Heard()
    listener = Listener(database.url("notifier"), None, {Channel.TASK_CHANGED: heard}, name="n08")
    await listener.open()
    await until(lambda: listener.is_live)
    for _ in range(100):
        await pool.fetchval("SELECT 1")
    await pool.close()
    await database.owner.execute("SELECT pg_notify($1, '[\"a\"]')", Channel.TASK_CHANGED.value)
    await until(lambda: ["a"] in heard.notes)
    assert listener.connects == 1
    await listener.close()
