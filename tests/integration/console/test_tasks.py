from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from services.console.messages.answers import Task, TaskDetail, TaskPage
from tests.integration.console.conftest import API, Console


async def test_a_task_is_enqueued_and_shown_as_declared(console: Console) -> None:
    await console.make_agent(tokens_per_page=700, max_attempts=4)
    task = await console.enqueue(customer="Nordlicht GmbH", priority=70, labels={"batch": "7"})
    Task.model_validate(task)
    assert (task["status"], task["priority"], task["max_attempts"], task["attempt"]) == ("enqueued", 70, 4, 0)
    assert task["llm_cost"] == task["compute_cost"] == "pending"
    detail = await console.get(f"/tasks/{task['id']}")
    TaskDetail.model_validate(detail)
    assert detail["waiting"]["reason"] == "next"
    assert [event["verb"] for event in detail["events"]] == ["enqueue"]
    assert detail["events"][0]["actor"] == "local"
    assert detail["input"] == {"text": "hello"}
    page = await console.get("/tasks")
    TaskPage.model_validate(page)
    assert page["tasks"][0]["reason"] == "next"


async def test_an_unknown_agent_and_an_unknown_document_are_named(console: Console) -> None:
    refused = await console.enqueue(422, agent="nobody")
    assert refused["reason"] == "unknown_agent"
    assert "nobody" in refused["detail"]
    await console.make_agent()
    assert (await console.enqueue(422, document_id=str(uuid.uuid4())))["reason"] == "unknown_document"


async def test_twenty_at_once_under_one_key_make_one_task(console: Console) -> None:
    await console.make_agent()
    body = {"agent": "reader", "input": {"a": 1, "b": [1, 2]}, "idempotency_key": "k-1", "priority": 50}
    answers = await asyncio.gather(*(console.http.post(f"{API}/tasks", json=body) for _ in range(20)))
    assert sorted({answer.status_code for answer in answers}) in ([200, 201], [201])
    assert [answer.status_code for answer in answers].count(201) == 1
    assert len({answer.json()["id"] for answer in answers}) == 1
    # The order of keys and what is a default anyway say nothing else.
    same = {"idempotency_key": "k-1", "input": {"b": [1, 2], "a": 1}, "agent": "reader"}
    assert (await console.post("/tasks", 200, json=same))["id"] == answers[0].json()["id"]
    other = await console.post("/tasks", 409, json={**body, "input": {"a": 2}})
    assert other["reason"] == "key_reused"


NOT_VALID: list[tuple[dict[str, Any], str]] = [
    ({"priority": 101}, "priority"),
    ({"priority": "50"}, "priority"),
    ({"priority": -1}, "priority"),
    ({"agent": "Not An Agent"}, "agent"),
    ({"agent": None}, "agent"),
    ({"available_at": "2026-12-01T10:00:00"}, "available_at"),
    ({"available_at": "9999-12-31T23:59:59-12:00"}, "available_at"),
    ({"labels": {"a": 1}}, "labels"),
    ({"labels": ["a"]}, "labels"),
    ({"prioritty": 1}, "prioritty"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"document_id": "../etc/passwd"}, "document_id"),
    ({"input": None}, "document_id or an input"),
    ({"input": {"n": 2**70}}, "input"),
]


async def test_what_is_not_valid_is_named_in_words(console: Console) -> None:
    await console.make_agent()
    for change, named in NOT_VALID:
        answer = await console.http.post(f"{API}/tasks", json={"agent": "reader", "input": {"a": 1}, **change})
        assert answer.status_code == 422, change
        assert answer.headers["content-type"] == "application/problem+json"
        assert named in answer.json()["detail"]
    assert await console.database.owner.fetchval("SELECT count(*) FROM lockkeeper.tasks") == 0


async def test_bodies_that_are_no_object_get_a_readable_answer(console: Console) -> None:
    for raw in (b"{", b"[]", b'"x"', b"nul", b"\xff\xfe", b"[" * 100_000, b""):
        answer = await console.http.post(f"{API}/tasks", content=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code in {400, 422}, raw[:10]
        assert answer.headers["content-type"] == "application/problem+json"
        assert "Traceback" not in answer.text


async def test_p01_p02_text_that_postgres_cannot_hold_is_cleaned(console: Console) -> None:
    """NUL and lone surrogates in JSON."""
    await console.make_agent()
    raw = rb'{"agent":"reader","customer":"a\u0000b","input":{"t\u0000":"x\ud800y\u0000z","pair":"\ud83d\ude00"},"labels":{"l":"\u0000"}}'
    answer = await console.http.post(f"{API}/tasks", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201, answer.text
    detail = await console.get(f"/tasks/{answer.json()['id']}")
    assert detail["customer"] == "ab"
    assert detail["input"] == {"t": "xyz", "pair": "\U0001f600"}


async def test_a_scheduled_task_waits_out_of_the_claims_way(console: Console) -> None:
    await console.make_agent()
    later = datetime.now(UTC) + timedelta(hours=1)
    task = await console.enqueue(available_at=later.isoformat())
    assert datetime.fromisoformat(task["available_at"]) == later
    assert (await console.get(f"/tasks/{task['id']}"))["waiting"]["reason"] == "scheduled"
    assert await console.database.owner.fetchval("SELECT deferred FROM lockkeeper.tasks")
    await console.enqueue(available_at=(later - timedelta(hours=2)).isoformat())
    assert await console.database.owner.fetchval("SELECT count(*) FROM lockkeeper.tasks WHERE NOT deferred") == 1


async def test_the_estimate_follows_pages_then_bytes_then_the_agent(console: Console) -> None:
    await console.make_agent(tokens_per_page=100)
    estimates = []
    for pages, size in ((7, 10), (None, 600_000)):
        document = await console.database.owner.fetchval(
            "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, pages, uploaded_by) "
            "VALUES ('d', gen_random_uuid()::text, 'x', $1, $2, 'local') RETURNING id",
            size, pages,
        )  # fmt: skip
        estimates.append((await console.enqueue(document_id=str(document)))["estimated_tokens"])
    estimates.append((await console.enqueue())["estimated_tokens"])
    assert estimates == [700, 1000, None]


async def test_pages_by_cursor_give_every_task_once_while_new_ones_come(console: Console) -> None:
    await console.make_agent()
    await console.database.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, created_at) SELECT 'reader', now() - interval '1 hour' "
        "+ (n / 3) * interval '1 second' FROM generate_series(1, 50) n"
    )
    seen: list[str] = []
    cursor = None
    while True:
        page = await console.get("/tasks", params={"limit": 7} | ({"cursor": cursor} if cursor else {}))
        seen += [task["id"] for task in page["tasks"]]
        await console.enqueue()
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 50
    assert (await console.get("/tasks", 422, params={"cursor": "bm9uc2Vuc2U"}))["reason"] == "bad_cursor"


async def test_days_that_touch_share_no_task_and_miss_none(console: Console) -> None:
    """B-05: half-open days in the asker's zone, on a day of 25 hours too."""
    days = [
        ("2026-10-24T00:00:00+02:00", "2026-10-25T00:00:00+02:00"),
        ("2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"),
        ("2026-10-26T00:00:00+01:00", "2026-10-27T00:00:00+01:00"),
    ]
    instants = [
        "2026-10-24T00:00:00+02:00", "2026-10-24T23:59:59.999999+02:00", "2026-10-25T00:00:00+02:00",
        "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T23:59:59.999999+01:00",
        "2026-10-26T00:00:00+01:00",
    ]  # fmt: skip
    for instant in instants:
        await console.database.owner.execute(
            "INSERT INTO lockkeeper.tasks (agent, created_at) VALUES ('reader', $1)", datetime.fromisoformat(instant)
        )
    totals, listed = [], []
    for from_at, to_at in days:
        totals.append((await console.get("/summary", params={"from": from_at, "to": to_at}))["total"])
        listed.append(len((await console.get("/tasks", params={"from": from_at, "to": to_at}))["tasks"]))
    assert totals == listed == [2, 4, 1]
    whole = await console.get("/summary", params={"from": days[0][0], "to": days[-1][1]})
    assert whole["total"] == sum(totals)
    assert (await console.get("/tasks", 422, params={"from": "2026-10-24"}))["reason"] == "bad_filter"
    unescaped = httpx.URL(f"{console.url}{API}/summary?from=2026-10-24T00:00:00+02:00&to=2026-10-27T00:00:00+01:00")
    assert (await console.http.get(unescaped)).json()["total"] == 7


async def test_filters_narrow_the_list(console: Console) -> None:
    await console.make_agent()
    await console.make_agent("writer")
    await console.enqueue(customer="A & B", labels={"batch": "7", "kind": "x"})
    await console.enqueue(agent="writer", customer="100%", labels={"batch": "8"})

    async def found(**params: Any) -> int:
        return len((await console.get("/tasks", params=params))["tasks"])

    assert await found(agent="writer") == 1
    assert await found(agent="writer,reader") == 2
    assert await found(status="enqueued,failed") == 2
    assert await found(status="failed") == 0
    assert await found(customer="A & B") == 1
    assert await found(text="100%") == 1
    assert await found(text="1_0") == 0
    assert await found(label="batch") == 2
    assert await found(label="batch=7") == 1
    assert await found(label=["batch=7", "kind=x"]) == 1
    assert (await console.get("/tasks", 422, params={"status": "done"}))["reason"] == "bad_filter"


async def test_the_list_says_why_each_task_waits(console: Console) -> None:
    await console.make_agent(max_concurrent_tasks=0)
    await console.make_agent("paused", paused=True)
    await console.enqueue()
    await console.enqueue(agent="paused")
    await console.database.owner.execute("INSERT INTO lockkeeper.tasks (agent) VALUES ('gone')")
    tasks = (await console.get("/tasks"))["tasks"]
    assert {task["agent"]: task["reason"] for task in tasks} == {
        "reader": "agent_full", "paused": "paused", "gone": "no_such_agent",
    }  # fmt: skip


async def test_unknown_ids_and_routes_are_problems(console: Console) -> None:
    for path, status in [(f"/tasks/{uuid.uuid4()}", 404), ("/tasks/1' OR 1=1", 422), ("/nothing", 404)]:
        answer = await console.http.get(API + path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await console.http.delete(f"{API}/tasks")).status_code == 405
