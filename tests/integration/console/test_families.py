"""Parents and children over the API."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from services.console.messages.answers import TaskDetail, TaskPage
from shared.db.invariants import violations
from tests.integration.console.conftest import Console
from tests.support.gates import Clock, Gates
from tests.support.hands import Hands


async def make_family(console: Console, *, children: int = 3, status: int = 201, **body: Any) -> Any:
    pages = [{"agent": "reader", "input": {"page": number}} for number in range(children)]
    return await console.post(
        "/tasks", status, json={"agent": "reader", "gather": "all_completed", "children": pages, **body}
    )


async def test_a_parent_shows_its_children_and_what_they_cost(console: Console) -> None:
    await console.make_agent()
    parent = await make_family(console, idempotency_key="book")
    assert await make_family(console, status=200, idempotency_key="book") == parent
    await make_family(console, status=409, idempotency_key="book", children=2)
    detail = await console.get(f"/tasks/{parent['id']}")
    TaskDetail.model_validate(detail)
    nothing = {"processing": 0, "completed": 0, "failed": 0, "cancelled": 0}
    assert detail["family"] == {"gather": "all_completed", "children": 3, "enqueued": 3, **nothing}
    assert detail["waiting"] == {"reason": "children", "place": None, "estimated_start": None}
    first = await console.get(f"/tasks/{parent['id']}/children", params={"limit": 2})
    TaskPage.model_validate(first)
    rest = await console.get(f"/tasks/{parent['id']}/children", params={"cursor": first["next_cursor"]})
    children = [task["id"] for task in (*first["tasks"], *rest["tasks"])]
    pages = [(await console.get(f"/tasks/{each}"))["input"]["page"] for each in children]
    assert pages == [0, 1, 2]
    listed = (await console.get("/tasks"))["tasks"]
    assert {task["waiting"]["reason"] for task in listed if task["id"] == parent["id"]} == {"children"}
    async with Hands(console.database, "a", Gates(Clock())) as hands:
        attempts = [each.attempt_id for each in await hands.claim()]
        await hands.succeed(attempts)
        await console.database.owner.execute(
            "UPDATE lockkeeper.task_attempts SET llm_cost = 0.25, compute_cost = 0.5, input_tokens = 10, cost_status = 'final'"
        )
        assert await hands.gather() == [UUID(parent["id"])]
    detail = await console.get(f"/tasks/{parent['id']}")
    assert (detail["status"], detail["result"]) == (
        "completed", {"children": 3, "completed": 3, "failed": 0, "cancelled": 0},
    )  # fmt: skip
    cost = detail["cost"]
    assert (cost["llm_cost"], cost["compute_cost"], cost["input_tokens"], cost["cost_status"]) == (
        "0.75", "1.5", 30, "final",
    )  # fmt: skip
    assert (await console.get(f"/tasks/{children[0]}"))["family"] is None
    assert await violations(console.database.owner) == []


async def test_a_cancelled_parent_takes_its_children_along(console: Console) -> None:
    await console.make_agent()
    parent = await make_family(console)
    children = [task["id"] for task in (await console.get(f"/tasks/{parent['id']}/children"))["tasks"]]
    async with Hands(console.database, "a", Gates(Clock())) as hands:
        (first, *_) = [each.attempt_id for each in await hands.claim(2)]
        await hands.fail([first], retryable=False)
    assert (await console.post(f"/tasks/{parent['id']}/cancel"))["status"] == "cancelled"
    ended = [(await console.get(f"/tasks/{each}"))["status"] for each in children]
    assert ended == ["failed", "cancelled", "cancelled"]
    assert {(await console.get(f"/tasks/{each}"))["events"][-1]["actor"] for each in children[1:]} == {"local"}
    await console.post(f"/tasks/{parent['id']}/cancel", 409)
    for verb in ("retry", "reprocess"):
        why = await console.post(f"/tasks/{parent['id']}/{verb}", 409)
        assert "enqueue a new parent" in why["detail"]
        why = await console.post(f"/tasks/{children[0]}/{verb}", 409)
        assert "has ended as cancelled" in why["detail"]
    await console.enqueue(409, parent_task_id=parent["id"])
    assert await violations(console.database.owner) == []


@pytest.mark.parametrize(
    "body",
    [
        {"children": [{"agent": "reader", "input": {}}]},
        {"gather": "some", "children": []},
        {"gather": "all_ended", "available_at": "2031-01-01T00:00:00Z"},
        {"gather": "all_ended", "children": [{"agent": "reader"}]},
        {"gather": "all_ended", "children": [{"agent": "reader", "input": {}, "idempotency_key": "x"}]},
        {"gather": "all_ended", "children": [{"agent": "nobody", "input": {}}]},
        {"input": {}, "parent_task_id": "00000000-0000-0000-0000-000000000001"},
    ],
)
async def test_a_family_that_cannot_be_is_refused_as_a_whole(console: Console, body: dict[str, Any]) -> None:
    await console.make_agent()
    await console.post("/tasks", 422, json={"agent": "reader", **body})
    assert (await console.get("/tasks"))["tasks"] == []
