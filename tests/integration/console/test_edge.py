from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from tests.conftest import TestDatabase
from tests.integration.console.conftest import API, Console, serve


async def pieces(count: int) -> AsyncIterator[bytes]:
    yield b'{"agent":"reader","input":{"a":"'
    for _ in range(count):
        yield b"x" * 65_536
    yield b'"}}'


async def test_a_body_that_is_too_large_is_refused_with_and_without_a_length(console: Console) -> None:
    await console.make_agent()
    headers = {"Content-Type": "application/json"}
    for content in (b'{"agent":"reader","input":{"a":"' + b"x" * 2_000_000 + b'"}}', pieces(40)):
        answer = await console.http.post(f"{API}/tasks", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await console.http.post(f"{API}/tasks", content=pieces(2), headers=headers)).status_code == 201


async def test_pages_of_other_sites_change_nothing(console: Console) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({}, 404),
        ({"Sec-Fetch-Site": "same-origin"}, 404),
        ({"Sec-Fetch-Site": "none"}, 404),
        ({"Origin": console.url}, 404),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ]
    for headers, status in cases:
        answer = await console.http.post(f"{API}/agents/nobody/pause", headers=headers)
        assert answer.status_code == status, headers


async def test_every_answer_forbids_foreign_code_and_frames(console: Console) -> None:
    for path in ("/", f"{API}/docs", f"{API}/tasks", f"{API}/nothing", "/tasks/0190a000-0000-7000-8000-000000000000"):
        answer = await console.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.headers["content-type"].startswith("text/html"):
            assert "<script>" not in answer.text and " style=" not in answer.text and " onclick" not in answer.text
            assert "https://" not in answer.text.replace("https://www.w3.org", "")


async def test_the_reference_names_every_call(console: Console) -> None:
    document = (await console.http.get(f"{API}/openapi.json")).json()
    page = (await console.http.get(f"{API}/docs")).text
    for path in document["paths"]:
        assert path in page
    for path in ("/documents", "/tasks", "/tasks/bulk", "/summary", "/agents/{name}", "/costs", "/costs/refresh"):
        assert API + path in document["paths"]


async def test_when_every_connection_is_taken_each_call_says_so_in_time(database: TestDatabase, tmp_path: Path) -> None:
    """A-02."""
    async with serve(database, tmp_path, pool_size=2) as console:
        console.pool._acquire_seconds = 0.5
        held = [console.pool.connection() for _ in range(2)]
        for each in held:
            await each.__aenter__()
        started = time.monotonic()
        paths = [
            "/tasks",
            "/summary",
            "/agents",
            "/costs",
            "/state",
            "/audit",
            "/tasks/0190a000-0000-7000-8000-000000000000",
        ]
        answers = await asyncio.gather(*(console.http.get(API + path) for path in paths))
        answers.append(await console.http.post(f"{API}/tasks", json={"agent": "reader", "input": {}}))
        assert time.monotonic() - started < 15
        for answer in answers:
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["reason"] == "database_unavailable"
        for each in held:
            await each.__aexit__(None, None, None)
        assert (await console.http.get(f"{API}/tasks")).status_code == 200


async def test_fifty_at_once_on_a_small_pool_all_get_their_answer(console: Console) -> None:
    """A-01."""
    await console.make_agent()
    answers = await asyncio.gather(*(console.enqueue() for _ in range(50)))
    assert len({answer["id"] for answer in answers}) == 50


async def test_a_database_that_goes_away_is_no_stack_trace(console: Console) -> None:
    await console.pool.close()
    for path in ("/tasks", "/summary", "/agents", "/state"):
        answer = await console.http.get(API + path)
        assert answer.status_code == 503
        assert "Traceback" not in answer.text and "asyncpg" not in answer.text
    assert (await console.http.get("/")).status_code == 200


async def test_the_actor_is_only_believed_behind_a_trusted_proxy(
    database: TestDatabase, tmp_path: Path, console: Console
) -> None:
    await console.make_agent()
    named = {"X-Forwarded-User": "mallory"}
    task = (await console.http.post(f"{API}/tasks", json={"agent": "reader", "input": {}}, headers=named)).json()
    assert task["created_by"] == "local"
    proxied = {"mode": "forwarded", "trusted_proxies": ["127.0.0.0/8"], "roles": {"mallory": ["operator"]}}
    async with serve(database, tmp_path, identity=proxied, allowed_hosts=["127.0.0.1"]) as trusting:
        answer = await trusting.http.post(f"{API}/tasks", json={"agent": "reader", "input": {}}, headers=named)
        assert answer.json()["created_by"] == "mallory"
        rebound = await trusting.http.get(f"{API}/tasks", headers={"Host": "evil.example"})
        assert rebound.status_code == 421


async def test_o01_metrics_name_routes_and_never_ids(console: Console) -> None:
    from prometheus_client import generate_latest

    await console.http.get(f"{API}/tasks/0190a000-0000-7000-8000-000000000000")
    text = generate_latest().decode()
    assert 'route="/api/v1/tasks/{task_id}",status="404"' in text
    assert "0190a000" not in text


async def test_static_files_come_from_one_place_only(console: Console) -> None:
    page = (await console.http.get("/")).text
    script = page.split('<script type="module" src="')[1].split('"')[0]
    answer = await console.http.get(script)
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    assert (
        "immutable" not in (await console.http.get("/static/old/" + script.rpartition("/")[2])).headers["cache-control"]
    )
    for path in ("/static/x/../../settings.py", "/static/x/%2e%2e%2fsettings.py", "/static/x/nothing.js"):
        assert (await console.http.get(httpx.URL(console.url + path))).status_code == 404
