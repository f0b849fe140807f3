"""The bill, read by the very statement from the workspace double's warehouse through the unchanged SDK."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from shared.contract.channels import Channel
from tests.conftest import TestDatabase
from tests.integration.cost_attributor.conftest import Attributor, Ended
from tests.support.workspace import WorkspaceDouble

MakeAttributor = Callable[..., Attributor]
SERVERLESS = "PREMIUM_JOBS_SERVERLESS_COMPUTE_US_EAST_N_VIRGINIA"
PRICE = Decimal("0.35")
_runs = itertools.count(7_000_000_001)


async def request(database: TestDatabase, *, hours: float = 2) -> UUID:
    """Ask for the figures of the hour that began before this one, and of this one, in the name of the console."""
    to_at = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    found: UUID = await database.owner.fetchval(
        "INSERT INTO lockkeeper.cost_requests (requested_by, from_at, to_at) VALUES ('me', $1, $2) RETURNING id",
        to_at - timedelta(hours=hours),
        to_at,
    )
    return found


async def answer(database: TestDatabase, attributor: Attributor, **window: float) -> Any:
    asked = await request(database, **window)
    assert await attributor.requests.run_once() is True
    row = await database.owner.fetchrow("SELECT * FROM lockkeeper.cost_requests WHERE id = $1", asked)
    assert row is not None
    return row


def bill(workspace: WorkspaceDouble, run_id: int, quantity: str, **row: Any) -> str:
    """One usage row of a run; its record id."""
    record_id = str(uuid4())
    given = {
        "record_id": record_id, "usage_metadata": {"job_run_id": str(run_id)}, "usage_quantity": quantity,
        "sku_name": SERVERLESS, **row,
    }  # fmt: skip
    added = workspace.http.post("/faults/billing/usage", json={"rows": [given]})
    assert added.status_code == 201, added.text
    return record_id


async def test_b02_a_run_without_usage_rows_is_pending_and_never_zero(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    run_id = next(_runs)
    attempt = await ended.attempt(run_id=run_id)
    it = make_attributor()
    asked = await answer(database, it)
    assert (asked["status"], asked["records"], asked["attempts_billed"], asked["error"]) == ("done", 0, 0, None)
    assert (await ended.row(attempt))["compute_cost"] is None
    record_id = bill(workspace, run_id, "0.5")
    asked = await answer(database, it)
    assert (asked["records"], asked["attempts_billed"]) == (1, 1)
    (line,) = await ended.lines(attempt)
    assert (line["kind"], line["record_id"], line["priced_by"], line["record_type"]) == (
        "compute", record_id, "bill", "ORIGINAL",
    )  # fmt: skip
    row = await ended.row(attempt)
    assert (row["compute_cost"], row["cost_status"], row["llm_cost"]) == (PRICE / 2, "pending", None)
    # One more row comes a day later.
    bill(workspace, run_id, "0.25")
    await answer(database, it)
    assert (await ended.row(attempt))["compute_cost"] == PRICE * 3 / 4
    assert it.notes.of(Channel.COST_CHANGED) == {str(row["task_id"])}


async def test_b01_corrections_are_summed_in_any_order_and_read_twice_without_harm(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    it = make_attributor()
    corrections = [("ORIGINAL", "10"), ("RETRACTION", "-10"), ("RESTATEMENT", "8")]
    for order in itertools.permutations(corrections):
        run_id = next(_runs)
        attempt = await ended.attempt(run_id=run_id)
        for kind, quantity in order:
            bill(workspace, run_id, quantity, record_type=kind)
            await answer(database, it)
        await answer(database, it)
        assert (await ended.row(attempt))["compute_cost"] == 8 * PRICE
        assert len(await ended.lines(attempt)) == 3


async def test_b03_usage_is_priced_by_its_start_and_what_has_no_price_says_so(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    """The double's list price changed from 0.39 to 0.35 at the first instant of 2025."""
    old, new, unpriced = (next(_runs) for _ in range(3))
    attempts = {run: await ended.attempt(run_id=run) for run in (old, new, unpriced)}
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET submitted_at = '2024-12-31 12:00+00' WHERE run_id = ANY ($1)",
        [old, new, unpriced],
    )
    span = {"usage_end_time": "2025-01-01T00:30:00.000Z", "usage_date": "2025-01-01"}
    bill(workspace, old, "1", usage_start_time="2024-12-31T23:59:59.999Z", **span)
    bill(workspace, new, "1", usage_start_time="2025-01-01T00:00:00.000Z", **span)
    bill(workspace, unpriced, "2", sku_name="NOBODY_KNOWS_IT", usage_start_time="2025-01-01T00:00:00.000Z", **span)
    await database.owner.execute(
        "INSERT INTO lockkeeper.cost_requests (requested_by, from_at, to_at) VALUES ('me', '2024-12-31', '2025-01-01')"
    )
    await make_attributor().requests.run_once()
    costs = {run: (await ended.row(attempt))["compute_cost"] for run, attempt in attempts.items()}
    assert costs == {old: Decimal("0.39"), new: Decimal("0.35"), unpriced: None}
    (line,) = await ended.lines(attempts[unpriced])
    assert (line["quantity"], line["unit"], line["amount"], line["priced_by"]) == (2, "DBU", None, None)


async def test_other_applications_and_other_workspaces_are_not_ours(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    run_id = next(_runs)
    attempt = await ended.attempt(run_id=run_id)
    bill(workspace, run_id, "1")
    bill(workspace, run_id, "100", workspace_id="4711000000000002")
    bill(workspace, run_id, "100", billing_origin_product="SQL")
    bill(workspace, next(_runs), "100")
    asked = await answer(database, make_attributor())
    assert (asked["records"], (await ended.row(attempt))["compute_cost"]) == (1, PRICE)


async def test_attempts_that_share_a_run_share_its_bill_by_their_time(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    run_id = next(_runs)
    attempts = [await ended.attempt(run_id=run_id, seconds_ago=60) for _ in range(3)]
    for attempt, seconds in zip(attempts, (10, 20, 3), strict=True):
        await database.owner.execute(
            "UPDATE lockkeeper.task_attempts SET finished_at = started_at + make_interval(secs => $2) WHERE id = $1",
            attempt, seconds,
        )  # fmt: skip
    bill(workspace, run_id, "0.333333333")
    await answer(database, make_attributor())
    costs = [(await ended.row(attempt))["compute_cost"] for attempt in attempts]
    assert sum(costs) == Decimal("0.333333333") * PRICE
    assert [float(cost / sum(costs)) for cost in costs] == pytest.approx([10 / 33, 20 / 33, 3 / 33])


async def test_only_runs_that_were_submitted_in_the_window_are_asked_for(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    old, new = next(_runs), next(_runs)
    before = await ended.attempt(run_id=old, seconds_ago=7_300)
    after = await ended.attempt(run_id=new)
    bill(workspace, old, "1")
    bill(workspace, new, "1")
    await answer(database, make_attributor(), hours=1)
    assert [(await ended.row(each))["compute_cost"] for each in (before, after)] == [None, PRICE]


async def test_a_refused_statement_fails_the_request_in_words_for_a_person(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    await ended.attempt(run_id=next(_runs))
    monkeypatch.setattr("services.cost_attributor.gateways._STATEMENT", "SELECT * FROM system.billing.nothing")
    asked = await answer(database, make_attributor())
    assert asked["status"] == "failed"
    assert "system.billing.nothing" in asked["error"]
    assert asked["finished_at"] is not None


async def test_a_warehouse_that_is_away_postpones_and_in_the_end_fails_the_request(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    await ended.attempt(run_id=next(_runs))
    workspace.fault("sql.*", "status", status=503)
    it = make_attributor()
    asked = await answer(database, it)
    assert (asked["status"], asked["finished_at"]) == ("pending", None)
    assert asked["error"]
    # Not before its time.
    assert await it.requests.run_once() is False
    await database.owner.execute(
        "UPDATE lockkeeper.cost_requests SET lease_expires_at = NULL, requested_at = lockkeeper.clock() - interval '1 day'"
    )
    assert await it.requests.run_once() is True
    assert await database.owner.fetchval("SELECT status FROM lockkeeper.cost_requests") == "failed"


async def test_without_a_warehouse_the_request_says_what_to_set(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    await ended.attempt(run_id=next(_runs))
    asked = await answer(database, make_attributor(warehouse_id=None))
    assert (asked["status"], "DATABRICKS_WAREHOUSE_ID" in asked["error"]) == ("failed", True)


async def test_one_answer_serves_everybody_who_asked_for_no_more(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    run_id = next(_runs)
    attempt = await ended.attempt(run_id=run_id)
    bill(workspace, run_id, "1")
    await request(database, hours=24)
    await request(database, hours=1)
    await request(database, hours=48)
    one, two = make_attributor("a"), make_attributor("b")
    assert await one.requests.run_once() is True
    statuses = [
        row["status"]
        for row in await database.owner.fetch("SELECT status FROM lockkeeper.cost_requests ORDER BY requested_at")
    ]
    assert statuses == ["done", "done", "pending"]
    assert await two.requests.run_once() is True
    assert await two.requests.run_once() is False
    assert len(await ended.lines(attempt)) == 1


async def test_a_replica_that_died_over_a_request_is_followed_by_another(
    database: TestDatabase, workspace: WorkspaceDouble, make_attributor: MakeAttributor, ended: Ended
) -> None:
    asked = await request(database)
    one, two = make_attributor("a"), make_attributor("b")
    assert await one.storage.take_cost_request(60) is not None
    assert await two.requests.run_once() is False
    await database.owner.execute("UPDATE lockkeeper.cost_requests SET lease_expires_at = lockkeeper.clock()")
    assert await two.requests.run_once() is True
    # The first one wakes up again, and its word does not count any more.
    await one.storage.finish_cost_request(asked, "failed", error="late")
    assert await database.owner.fetchval("SELECT status FROM lockkeeper.cost_requests WHERE id = $1", asked) == "done"
