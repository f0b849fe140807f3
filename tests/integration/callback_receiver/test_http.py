"""What the endpoint refuses, how it says so, and that a refusal writes nothing and harms nobody else."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest

from services.callback_receiver.routes import create_app
from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from shared.runtime.http import HttpServer
from tests.conftest import TestDatabase
from tests.support.receiver import KEYS, Receiver, Stage, receiver, signed, stage

BODY = b'{ "usage":[] ,\t"result" : {"n\xc3\xa4me": "\xe2\x82\xac 1"}}'


@asynccontextmanager
async def listening(it: Receiver) -> AsyncIterator[str]:
    """The same receiver behind a real socket."""
    server = HttpServer(create_app(it.callbacks), "127.0.0.1", 0)
    await server.open()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


async def untouched(on: Stage) -> bool:
    return await on.verbs() == ["enqueue", "claim", "submit"]


async def test_w04_the_raw_bytes_are_what_is_signed(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        answer = await it.post(attempt, "result", BODY)
        assert answer.status_code == 200
        assert (await on.task())["result"] == {"näme": "€ 1"}


async def test_w04_every_bad_signature_gets_one_answer_and_writes_nothing(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        good = signed(BODY)
        now = time.time()
        bad: list[dict[str, str]] = [
            {},
            {name: value for name, value in good.items() if name != SIGNATURE_HEADER},
            {name: value for name, value in good.items() if name != KEY_ID_HEADER},
            {name: value for name, value in good.items() if name != TIMESTAMP_HEADER},
            good | {SIGNATURE_HEADER: ""},
            good | {SIGNATURE_HEADER: good[SIGNATURE_HEADER][:-1]},
            good | {SIGNATURE_HEADER: good[SIGNATURE_HEADER].removeprefix("v1=")},
            good | {SIGNATURE_HEADER: good[SIGNATURE_HEADER].replace("v1=", "v2=")},
            good | {SIGNATURE_HEADER: good[SIGNATURE_HEADER].upper()},
            good | {SIGNATURE_HEADER: "v1=" + "ü" * 64},
            good | {KEY_ID_HEADER: "unknown"},
            good | {KEY_ID_HEADER: "second"},
            signed(json.dumps(json.loads(BODY)).encode()),  # the same value in other bytes
            signed(b'{"result": {"of": "another"}}'),
            signed(BODY, at=now - 301 - 2),
            signed(BODY, at=now + 301 + 2),
            good | {TIMESTAMP_HEADER: str(int(good[TIMESTAMP_HEADER]) + 1)},
            good | {TIMESTAMP_HEADER: good[TIMESTAMP_HEADER] + ".0"},
            good | {TIMESTAMP_HEADER: "-" + good[TIMESTAMP_HEADER]},
            good | {TIMESTAMP_HEADER: "9" * 400},
            good | {TIMESTAMP_HEADER: "now"},
        ]
        path = f"/callbacks/v1/attempts/{attempt}/result"
        answers = [
            await it.client.post(path, content=BODY, headers=[(k.encode(), v.encode()) for k, v in headers.items()])
            for headers in bad
        ]
        assert {(answer.status_code, answer.content) for answer in answers} == {(401, answers[0].content)}
        assert not any(secret.encode() in answers[0].content for secret in KEYS.values())
        # The signature comes before the attempt: nobody learns which attempts exist.
        stranger = await it.client.post("/callbacks/v1/attempts/nonsense/result", content=BODY)
        assert (stranger.status_code, stranger.content) == (401, answers[0].content)
        assert await untouched(on)


async def test_two_keys_are_active_and_old_timestamps_are_good_within_the_window(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        path = f"/callbacks/v1/attempts/{attempt}/heartbeat"
        for headers in (
            signed(b"{}", key_id="second"),
            signed(b"{}", at=time.time() - 290),
            signed(b"{}", at=time.time() + 290),
        ):
            assert (await it.client.post(path, content=b"{}", headers=headers)).status_code == 200


async def test_l03_the_window_is_measured_by_the_databases_clock(database: TestDatabase) -> None:
    await database.owner.execute(f"ALTER DATABASE {database.name} SET lockkeeper.clock = '2031-05-06 07:08:09+00'")
    async with receiver(database) as it:
        path = f"/callbacks/v1/attempts/{uuid4()}/heartbeat"
        assert (await it.client.post(path, content=b"{}", headers=signed(b"{}"))).status_code == 401
        then = signed(b"{}", at=datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp())
        assert (await it.client.post(path, content=b"{}", headers=then)).status_code == 404


@pytest.mark.parametrize("size", [1_100_000, 30_000_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_w06_a_body_over_the_limit_is_413_quickly_with_bounded_memory(
    database: TestDatabase, size: int, chunked: bool
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // 50_000):
            yield b" " * 50_000

    async with receiver(database) as it, listening(it) as url, httpx.AsyncClient() as client:
        before = psutil.Process().memory_info().rss
        content: Any = pieces() if chunked else b" " * size
        started = time.monotonic()
        answer = await client.post(
            f"{url}/callbacks/v1/attempts/{uuid4()}/result", content=content, headers=signed(b" " * size)
        )
        assert answer.status_code == 413
        assert "result_stored" in answer.json()["detail"]
        assert time.monotonic() - started < 5
        if chunked:  # else the sender, which is this process too, holds it all
            assert psutil.Process().memory_info().rss - before < 20_000_000
        assert it.callbacks.held_bytes == 0


async def test_w06_an_endless_body_is_answered_while_it_still_comes(database: TestDatabase) -> None:
    async with receiver(database, max_body_bytes=10_000) as it, listening(it) as url:
        port = int(url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        headers = "".join(f"{name}: {value}\r\n" for name, value in signed(b"").items())
        writer.write(
            f"POST /callbacks/v1/attempts/{uuid4()}/result HTTP/1.1\r\nHost: x\r\n{headers}"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(20):
            writer.write(b"400\r\n" + b"x" * 1_024 + b"\r\n")
        await writer.drain()
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


async def test_w06_an_encoded_body_is_refused_unread(database: TestDatabase) -> None:
    async with receiver(database) as it:
        bomb = gzip.compress(b" " * 5_000_000)
        answer = await it.post(uuid4(), "result", bomb, **{"Content-Encoding": "gzip"})
        assert answer.status_code == 415


async def test_a_body_that_never_ends_in_time_is_408(database: TestDatabase) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with receiver(database, body_seconds=0.05) as it, listening(it) as url:
        port = int(url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        headers = "".join(f"{name}: {value}\r\n" for name, value in signed(b"{}").items())
        writer.write(
            f"POST /callbacks/v1/attempts/{uuid4()}/result HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 100\r\n\r\n{{".encode()
        )
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


@pytest.mark.parametrize(
    ("kind", "body", "word"),
    [
        ("result", b"", "JSON"),
        ("result", b"[]", "object"),
        ("result", b'"text"', "object"),
        ("result", b"{", "JSON"),
        ("result", b"\xff\xfe{}", "JSON"),
        ("result", b'{"confidence": NaN}', "NaN"),
        ("result", b'{"confidence": 2}', "confidence"),
        ("result", b'{"pages": "many"}', "pages"),
        ("result", b'{"resutl": {}}', "resutl"),
        ("result", b'{"usage": [{"model": "m", "input_tokens": -1}]}', "usage.0.input_tokens"),
        ("result", b'{"result": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}", "result"),
        ("result", b'{"result": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "JSON"),
        ("result", b'{"result": {"n": ' + b"9" * 5_000 + b', "s": "\\ud800"}}', "JSON"),
        ("failure", b'{"reason": "Not A Word", "message": "m", "retryable": true}', "reason"),
        ("failure", b'{"reason": "r", "message": "m"}', "retryable"),
        ("heartbeat", b'{"pages_done": -1}', "pages_done"),
    ],
)
async def test_w07_a_body_that_does_not_fit_is_422_and_says_what(
    database: TestDatabase, kind: str, body: bytes, word: str
) -> None:
    async with receiver(database) as it, stage(database) as on:
        answer = await it.post(await on.claim(), kind, body)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert word in answer.json()["detail"]
        assert await untouched(on)


async def test_p01_p02_what_postgres_cannot_store_is_taken_out_and_counted(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on, stage(database) as other:
        attempt = await on.claim()
        raw = (
            rb'{"result": {"na\u0000me": "speci\u0000c", "half": "a\ud800b", "pair": "\ud83d\ude00"}, "damage": ["\u0000x"],'
            rb' "trace_id": "t\u0000r", "usage": [{"model": "m\udc00", "input_tokens": 1}], "cleaned_characters": 2}'
        )
        assert (await it.post(attempt, "result", raw)).status_code == 200
        row = await on.attempt(attempt)
        assert (await on.task())["result"] == {"name": "specic", "half": "ab", "pair": "😀"}
        assert (row["trace_id"], row["usage"][0]["model"]) == ("tr", "m")
        assert row["report"] == {"damage": ["x"], "cleaned_characters": 8}
        failed = await other.claim()
        said = rb'{"reason": "r", "message": "bad \u0000 \ud800 text", "retryable": false}'
        assert (await it.post(failed, "failure", said)).status_code == 200
        assert (await other.task())["error"] == {"reason": "r", "message": "bad   text"}


async def test_w07_a_value_that_the_database_refuses_harms_only_its_own_report(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing known gets past the cleaner, so the cleaner is left out here."""
    monkeypatch.setattr("services.callback_receiver.messages.clean_json", lambda value: (value, 0))
    async with receiver(database) as it, stage(database) as on, stage(database) as other:
        good, bad = await on.claim(), await other.claim()
        answers = await asyncio.gather(it.post(bad, "result", rb'{"result": {"x": "\u0000"}}'), it.result(good))
        assert [answer.status_code for answer in answers] == [422, 200]
        assert answers[0].json()["reason"] == "value_refused"
        assert await untouched(other)


async def test_w07_trouble_with_the_database_is_503_with_retry_after(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        await database.owner.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
        await it.pool.renew_connections()
        answer = await it.result(attempt)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        await database.owner.execute(f"ALTER DATABASE {database.name} RESET default_transaction_read_only")
        await it.pool.close()
        assert (await it.result(attempt)).status_code == 503
        await it.pool.open()
        assert (await it.result(attempt)).status_code == 200


async def test_nothing_is_accepted_before_the_databases_clock_is_known(database: TestDatabase) -> None:
    async with receiver(database) as it, stage(database) as on:
        attempt = await on.claim()
        it.clock.forget()
        answer = await it.result(attempt)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        await it.clock.run_once()
        assert (await it.result(attempt)).status_code == 200


async def test_too_many_waiting_reports_are_turned_away(database: TestDatabase) -> None:
    async with receiver(database, max_waiting=1, rounds_at_once=1) as it, stage(database) as on:
        attempt = await on.claim()
        async with database.owner.transaction():
            await database.owner.execute("SELECT FROM lockkeeper.tasks FOR UPDATE")
            stuck = asyncio.create_task(it.result(attempt))
            answers = await asyncio.gather(*(it.post(attempt, "heartbeat", {"pages_done": n}) for n in range(50)))
            assert {answer.status_code for answer in answers} <= {503}
            assert answers[0].headers["retry-after"] == "2"
        assert (await stuck).status_code == 200
