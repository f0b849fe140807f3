"""Every place where the console takes text, found in its own OpenAPI document, given text that wants to be more."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.runtime.http import edge
from tests.conftest import TestDatabase
from tests.integration.console.conftest import API, Console, serve
from tests.support import hostile

NOBODY = "01900000-0000-7000-8000-000000000000"
PRICE = {"model": "m", "input_price": "1", "output_price": "2", "valid_from": "2026-01-01T00:00:00Z"}
BODIES: dict[str, dict[str, Any]] = {
    "POST /tasks": {"agent": "reader", "input": {"a": 1}, "labels": {"a": "b"}, "children": []},
    "PATCH /tasks/{task_id}": {"priority": 7},
    "POST /tasks/bulk": {"action": "retry", "filter": {"text": "nothing like it"}, "dry_run": True},
    "POST /tasks/{task_id}/reprocess": {"agent": "reader"},
    "PUT /agents/{name}": {"target": "job"},
    "PUT /customers/{name}": {"daily_budget": "1"},
    "POST /costs/refresh": {},
    "PUT /prices": {"prices": [PRICE]},
    "POST /prices/repricings": {"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z", "models": ["m"]},
}
"""A body that fits, for every operation that takes JSON."""
IDS = ("task_id", "document_id", "request_id", "repricing_id")
NAMES = dict.fromkeys(IDS, NOBODY) | {"name": "reader", "page": "1"}
INSIDE = ("input", "labels", "options", "filter", "models", "customer_weights")


async def places_of(console: Console) -> hostile.Places:
    document = (await console.http.get(f"{API}/openapi.json")).json()
    return hostile.Places(document, API, BODIES, NAMES, INSIDE)


@asynccontextmanager
async def canary() -> AsyncIterator[tuple[str, list[str]]]:
    """An address that tells who came."""
    came: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append((await reader.read(200)).decode(errors="replace"))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/latest/meta-data", came


async def test_every_operation_with_a_body_is_known_here(console: Console) -> None:
    assert (await places_of(console)).with_bodies() == set(BODIES)


async def test_no_text_becomes_a_statement_a_path_or_an_error(console: Console) -> None:
    """A-09, G: quotes, comments, dollars, NUL and percent signs are text in every place that takes any."""
    await console.make_agent()
    places = await places_of(console)
    await console.enqueue()
    told: list[str] = []
    sent = 0

    async def ask(verb: str, path: str, options: dict[str, Any]) -> None:
        nonlocal sent
        sent += 1
        answer = await console.http.request(verb, path, **options)
        if hostile.is_fault(answer.status_code, answer.text):
            told.append(f"{verb} {path} {options}: {answer.status_code} {answer.text[:200]}")

    for text in hostile.FEW:
        calls = list(places.calls(text))
        for begin in range(0, len(calls), 10):
            await asyncio.gather(*(ask(*each) for each in calls[begin : begin + 10]))
    assert told == []
    assert sent > 80 * len(hostile.FEW)
    assert await console.database.owner.fetchval("SELECT count(*) > 0 FROM lockkeeper.tasks")


async def test_no_address_in_any_field_is_visited(console: Console) -> None:
    """SSRF: there is no field for an address, and text that is one leads nobody anywhere."""
    await console.make_agent()
    places = await places_of(console)
    async with canary() as (address, came):
        for verb, path, options in places.calls(address):
            await console.http.request(verb, path, **options)
        for name in ("callback_url", "url", "document_url", "webhook"):
            answer = await console.http.post(f"{API}/tasks", json={**BODIES["POST /tasks"], name: address})
            assert answer.status_code == 422, name
        assert came == []


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"agent": "reader", "input": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", {}),
        (b"[" * 500_000, {}),
        (b'{"agent": "reader", "input": {"n": ' + b"9" * 100_000 + b"}}", {}),
        (b'{"agent": "reader", "input": {"n": 1e999999}}', {}),
        (b'{"agent": "reader", "input": {"n": NaN}}', {}),
        (b'{"agent": "reader", "input": {"s": "\\ud800\\u0000"}}', {}),
        (gzip.compress(b'{"agent": "reader", "input": {}}' + b" " * 5_000_000), {"Content-Encoding": "gzip"}),
        (b'{"agent": "reader", "input": {"a": 1}, "agent": "nobody"}', {}),
    ],
    ids=["deep", "deep list", "long number", "large number", "NaN", "half a pair and NUL", "gzip", "twice"],
)
async def test_json_bombs_are_refused_in_words(console: Console, body: bytes, headers: dict[str, str]) -> None:
    await console.make_agent()
    answer = await console.http.post(
        f"{API}/tasks", content=body, headers={"Content-Type": "application/json", **headers}, timeout=20
    )
    assert answer.status_code in {201, 400, 413, 415, 422}, answer.text[:300]
    assert not any(leak in answer.text for leak in hostile.LEAKS)


async def test_a_body_that_never_ends_is_408(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(edge.Edge.__init__.__kwdefaults__, "body_seconds", 0.2)
    async with serve(database, tmp_path) as console:
        port = httpx.URL(console.url).port
        for path in ("tasks", "documents"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            kind = "application/json" if path == "tasks" else "multipart/form-data; boundary=b"
            writer.write(
                f"POST {API}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
                "Content-Length: 100\r\n\r\n--b".encode()
            )
            assert b" 408 " in await asyncio.wait_for(reader.readline(), 5), path
            writer.close()
            await writer.wait_closed()
        assert list(console.spool_dir.iterdir()) == []


async def test_a_table_as_csv_is_whole_or_refused(console: Console) -> None:
    """An agent's name may begin with a digit and is no number; a question that cannot be asked is no half answer."""
    await console.make_agent("7up")
    await console.enqueue(agent="7up")
    for name in ("forecast", "reconciliation"):
        assert (await console.http.get(f"{API}/costs/{name}?format=csv")).status_code == 200
    assert "7up" in (await console.http.get(f"{API}/costs/forecast?format=csv")).text
    for path in ("/costs/lines?format=csv&figure=llm_cost&group_by=agent&key=%00", "/costs?format=csv&agent=%00"):
        answer = await console.http.get(API + path)
        assert answer.status_code in {200, 422}, answer.text
