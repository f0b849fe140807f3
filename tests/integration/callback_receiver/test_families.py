"""Parents: nothing starts them, and they end by their rule when their children have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.client import Gather
from shared.db.invariants import violations
from shared.testing.rows import make_agent
from tests.conftest import TestDatabase
from tests.support.gates import Clock, Gates
from tests.support.hands import Hands


@pytest.fixture
async def hands(database: TestDatabase) -> AsyncIterator[Hands]:
    await make_agent(database.owner)
    async with Hands(database, "a", Gates(Clock())) as found:
        yield found


async def task(database: TestDatabase, task_id: Any) -> Any:
    return await database.owner.fetchrow("SELECT * FROM lockkeeper.tasks WHERE id = $1", task_id)


@pytest.mark.parametrize(
    ("gather", "ends", "status"),
    [
        ("all_completed", "cc", "completed"),
        ("all_completed", "cf", "failed"),
        ("all_completed", "cx", "failed"),
        ("any_completed", "cf", "completed"),
        ("any_completed", "fx", "failed"),
        ("all_ended", "fx", "completed"),
        ("all_completed", "", "completed"),
        ("any_completed", "", "completed"),
    ],
)
async def test_a_parent_ends_by_its_rule(
    database: TestDatabase, hands: Hands, gather: Gather, ends: str, status: str
) -> None:
    parent, children = await hands.enqueue_family(gather, len(ends))
    attempts = {each.task_id: each.attempt_id for each in await hands.claim()}
    assert attempts.keys() == set(children), "a parent is never started"
    for child, end in zip(children, ends, strict=True):
        assert await hands.gather() == []
        match end:
            case "c":
                await hands.succeed([attempts[child]])
            case "f":
                await hands.fail([attempts[child]], retryable=False)
            case _:
                await hands.act("cancel", child)
    assert await hands.gather() == [parent]
    assert await hands.gather() == []
    row = await task(database, parent)
    counts = {"completed": ends.count("c"), "failed": ends.count("f"), "cancelled": ends.count("x")}
    assert (row["status"], row["verb"]) == (status, "gather")
    if status == "completed":
        assert row["result"] == {"children": len(ends), **counts}
    else:
        assert row["error"]["reason"] == "children_failed"
        assert f"of {len(ends)} children {counts['completed']} completed" in row["error"]["message"]
    assert await violations(database.owner) == []


async def test_a_child_that_is_done_anew_counts_as_its_newest_copy(database: TestDatabase, hands: Hands) -> None:
    parent, children = await hands.enqueue_family("all_completed", 1)
    await hands.fail([each.attempt_id for each in await hands.claim()], retryable=False)
    copy = await hands.act("retry", children[0])
    assert (await task(database, copy))["parent_task_id"] == parent
    assert await hands.gather() == []
    await hands.succeed([each.attempt_id for each in await hands.claim()])
    assert await hands.gather() == [parent]
    assert (await task(database, parent))["result"] == {"children": 1, "completed": 1, "failed": 0, "cancelled": 0}
    assert await violations(database.owner) == []


async def test_the_database_lets_nobody_start_a_parent(database: TestDatabase, hands: Hands) -> None:
    parent, _ = await hands.enqueue_family("all_completed", 1)
    hands.gates.clock.move(10**9)
    assert await hands.dispatcher.promote_due(100) == 0
    with pytest.raises(Exception, match="parents_only_wait"):
        await database.owner.execute(
            "UPDATE lockkeeper.tasks SET status = 'processing', lease_expires_at = now() WHERE id = $1", parent
        )
