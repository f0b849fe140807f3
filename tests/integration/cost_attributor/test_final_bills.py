"""How far a bill is known: pending, preliminary, final, unknown; and that the warehouse is asked once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from tests.conftest import TestDatabase
from tests.integration.cost_attributor.conftest import Attributor, Ended
from tests.integration.cost_attributor.test_bills import PRICE, answer, bill, request
from tests.support.workspace import WorkspaceDouble

MakeAttributor = Callable[..., Attributor]
DAY = 86_400
_runs = itertools.count(7_500_000_001)


async def status_of(owner: asyncpg.Connection, run_id: int) -> str | None:
    found: str | None = await owner.fetchval("SELECT status FROM lockkeeper.run_bills WHERE run_id = $1", run_id)
    return found


async def shown(owner: asyncpg.Connection, attempt: Any) -> str:
    found: str = await owner.fetchval(
        "SELECT c.compute_status FROM lockkeeper.task_costs c JOIN lockkeeper.task_attempts x USING (task_id) "
        "WHERE x.id = $1",
        attempt,
    )
    return found


async def later(owner: asyncpg.Connection, seconds: float) -> None:
    """Let time pass: everything that happened was so much longer ago."""
    await owner.execute(
        "UPDATE lockkeeper.task_attempts SET leased_at = leased_at - make_interval(secs => $1::float8), "
        "submitted_at = submitted_at - make_interval(secs => $1::float8), "
        "started_at = started_at - make_interval(secs => $1::float8), "
        "finished_at = finished_at - make_interval(secs => $1::float8)",
        seconds,
    )
    await owner.execute(
        "UPDATE lockkeeper.run_bills SET submitted_at = submitted_at - make_interval(secs => $1::float8)", seconds
    )


async def test_b02_a_bill_is_pending_then_preliminary_then_final_and_read_again_until_then(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    """Asked 10 minutes, 30 hours and 4 days after the run; its first row came after 12 hours, the last after 26."""
    owner, run_id, silent = database.owner, next(_runs), next(_runs)
    attempt, unheard = await ended.attempt(run_id=run_id), await ended.attempt(run_id=silent)
    it = make_attributor()
    await answer(database, it)
    assert await status_of(owner, run_id) == "pending"
    assert ((await ended.row(attempt))["compute_cost"], await shown(owner, attempt)) == (None, "pending")
    await later(owner, 30 * 3600)
    bill(workspace, run_id, "1")
    # Nobody asks for that day any more; the run is read again with whatever is asked for.
    asked = await answer(database, it, hours=1)
    assert (asked["records"], await status_of(owner, run_id)) == (1, "preliminary")
    assert ((await ended.row(attempt))["compute_cost"], await shown(owner, attempt)) == (PRICE, "preliminary")
    bill(workspace, run_id, "-1", record_type="RETRACTION")
    bill(workspace, run_id, "0.5", record_type="RESTATEMENT")
    await later(owner, 3 * DAY)
    await answer(database, it, hours=1)
    assert (await status_of(owner, run_id), await shown(owner, attempt)) == ("final", "final")
    assert (await ended.row(attempt))["compute_cost"] == PRICE / 2
    # A run that the bill never named: its cost is unknown, and not nothing.
    assert (await status_of(owner, silent), await shown(owner, unheard)) == ("unknown", "unknown")
    assert (await ended.row(unheard))["compute_cost"] is None
    # Final runs are left alone, unless their time is asked for.
    asked = await answer(database, it, hours=1)
    assert asked["records"] == 0


async def test_a_run_that_goes_on_is_preliminary_however_old(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    run_id = next(_runs)
    attempt = await ended.attempt(run_id=run_id)
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET status = 'running', finished_at = NULL WHERE id = $1", attempt
    )
    bill(workspace, run_id, "1")
    it = make_attributor(bill_final_after_seconds=0.001)
    await answer(database, it)
    assert await status_of(database.owner, run_id) == "preliminary"


async def test_two_replicas_never_have_statements_at_the_warehouse_at_once(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt(run_id=(run_id := next(_runs)))
    bill(workspace, run_id, "1")
    replicas = [make_attributor(name) for name in "abcd"]
    for hours in (1, 2, 3, 4):
        await request(database, hours=hours)
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(
                await watcher.fetchval("SELECT count(*) FROM lockkeeper.cost_requests WHERE status = 'running'")
            )

    watcher = await asyncpg.connect(database.url())
    watching = asyncio.create_task(watch())
    workspace.fault("sql.statement", "delay", seconds=0.3)
    while any(await asyncio.gather(*(each.requests.run_once() for each in replicas))):
        pass
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await watcher.close()
    statuses = await database.owner.fetch("SELECT DISTINCT status FROM lockkeeper.cost_requests")
    assert ([row["status"] for row in statuses], max(seen)) == (["done"], 1)
    assert (await ended.row(attempt))["compute_cost"] == PRICE


async def test_the_schedule_asks_once_and_not_while_somebody_did(
    database: TestDatabase, make_attributor: MakeAttributor
) -> None:
    storages = [make_attributor(name).storage for name in "abc"]
    made = await asyncio.gather(*(each.schedule_cost_request(3600, DAY) for each in storages))
    assert len([each for each in made if each]) == 1
    owner = database.owner
    await owner.execute("UPDATE lockkeeper.cost_requests SET status = 'done', finished_at = now()")
    assert await storages[0].schedule_cost_request(3600, DAY) is None
    await owner.execute("UPDATE lockkeeper.cost_requests SET requested_at = now() - interval '61 minutes'")
    assert await storages[0].schedule_cost_request(3600, DAY) is not None


async def test_a_shared_record_is_written_whole_or_not_at_all(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run_id = next(_runs)
    attempts = [await ended.attempt(run_id=run_id, seconds_ago=60) for _ in range(3)]
    await database.owner.execute("UPDATE lockkeeper.task_attempts SET finished_at = started_at + interval '10 seconds'")
    bill(workspace, run_id, "0.9")
    monkeypatch.setattr("services.cost_attributor.loops.HELD_SECONDS", 0)
    holder = await asyncpg.connect(database.url())
    async with holder.transaction():
        await holder.execute("SELECT FROM lockkeeper.task_attempts WHERE id = $1 FOR UPDATE", attempts[1])
        asked = await answer(database, it := make_attributor())
        assert asked["status"] == "pending"
        assert await database.owner.fetchval("SELECT count(*) FROM lockkeeper.cost_entries") == 0
    await holder.close()
    await database.owner.execute("UPDATE lockkeeper.cost_requests SET lease_expires_at = NULL")
    await it.requests.run_once()
    costs = [(await ended.row(attempt))["compute_cost"] for attempt in attempts]
    assert costs == [Decimal("0.3") * PRICE] * 3
