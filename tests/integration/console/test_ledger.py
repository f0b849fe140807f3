"""Every figure of the cost page followed to its lines, and the questions that finance asks."""

from __future__ import annotations

import csv
import io
import uuid
from decimal import Decimal
from typing import Any

import pytest

from services.console.messages.costs import CostPage, Forecast, LinePage, Reconciliation, Why
from shared.db.statements import load
from tests.integration.console.conftest import Console

_LINE = """
INSERT INTO lockkeeper.cost_entries
       (source, record_id, attempt_id, task_id, agent, kind, model, input_tokens, output_tokens, cache_read_tokens,
        cache_write_tokens, amount, list_amount, currency, priced_by, record_type, usage_start_at, quantity)
SELECT g.source, g.record_id, $1, $2, 'x', g.kind, g.model, g.input, 10, 0, 0, g.amount, g.list_amount,
       coalesce(g.currency, 'USD'), g.priced_by, g.record_type, now(), g.quantity
  FROM jsonb_to_record($3::jsonb) AS g (source text, record_id text, kind text, model text, input bigint,
       amount numeric, list_amount numeric, currency text, priced_by text, record_type text, quantity numeric)
"""
_ROLL_UP = """
UPDATE lockkeeper.task_attempts x
   SET llm_cost = (SELECT sum(amount) FROM lockkeeper.cost_lines l
                    WHERE l.attempt_id = x.id AND l.kind = 'llm' AND l.currency = 'USD'),
       compute_cost = (SELECT sum(amount) FROM lockkeeper.cost_lines l WHERE l.attempt_id = x.id AND l.kind = 'compute'),
       cost_status = 'final'
"""


def traced(amount: str, model: str = "m", **own: Any) -> dict[str, Any]:
    line = {"source": "trace", "record_id": f"tr-{uuid.uuid4().hex}", "kind": "llm", "model": model, "input": 100}
    return {**line, "amount": amount, "priced_by": "trace", **own}


def billed(amount: str, record_type: str = "ORIGINAL", **own: Any) -> dict[str, Any]:
    line = {"source": "billing", "record_id": str(uuid.uuid4()), "kind": "compute", "amount": amount}
    return {**line, "priced_by": "bill", "record_type": record_type, "quantity": "1", **own}


class Spent:
    """Tasks with attempts and the lines of these."""

    def __init__(self, console: Console) -> None:
        self.owner = console.database.owner
        self._run = 100

    async def task(self, status: str, *attempts: tuple[str, list[dict[str, Any]]], **own: Any) -> str:
        columns = {"agent": "x", "customer": None, "created_at": None, **own}
        task_id = await self.owner.fetchval(
            "INSERT INTO lockkeeper.tasks (agent, customer, status, finished_at, created_at, estimated_tokens) "
            "SELECT $1, $2, $3, CASE WHEN $3 <> 'enqueued' THEN now() END, coalesce($4::text::timestamptz, now()), 1000 "
            "RETURNING id",
            columns["agent"], columns["customer"], status, columns["created_at"],
        )  # fmt: skip
        for number, (outcome, lines) in enumerate(attempts, 1):
            attempt = uuid.uuid4()
            self._run += 1
            await self.owner.execute(
                "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, run_id, leased_at, "
                "started_at, finished_at, pages) SELECT $1, $2, $3, $4, $5, $6, at, at, at + interval '60 seconds', 4 "
                "FROM (SELECT coalesce($7::text::timestamptz, now()) AS at)",
                attempt, task_id, columns["agent"], number, outcome, self._run, own.get("leased_at"),
            )  # fmt: skip
            for line in lines:
                await self.owner.execute(_LINE, attempt, task_id, line)
        await self.owner.execute(_ROLL_UP)
        return str(task_id)


@pytest.fixture
def spent(console: Console) -> Spent:
    return Spent(console)


async def test_every_figure_is_the_sum_of_the_lines_that_its_link_names(console: Console, spent: Spent) -> None:
    await spent.task(
        "completed",
        ("lost", [traced("0.10")]), ("superseded", [traced("0.30"), billed("0.05")]), ("completed", [traced("0.20")]),
        customer="A",
    )  # fmt: skip
    await spent.task("failed", ("failed", [traced("0.40", "n"), billed("0.50"), billed("-0.50", "RETRACTION")]))
    await spent.task("completed", ("completed", [traced("7", "m", currency="EUR")]), customer="A")
    for group_by in ("agent", "customer", "status", "day", "month", "task"):
        page = await console.get("/costs", params={"group_by": group_by, "tz": "Asia/Tokyo"})
        CostPage.model_validate(page)
        for row in page["costs"]:
            for figure in ("llm_cost", "compute_cost", "retry_cost", "superseded_cost"):
                why = await lines_of(console, row["why"], figure)
                expected = Decimal(row[figure]) if row[figure][0].isdigit() else Decimal(0)
                found = sum((Decimal(line["amount"]) for line in why["lines"]), Decimal(0))
                assert found == expected, (group_by, row["key"], figure)
    by_model = await console.get("/costs", params={"group_by": "model"})
    LinePage.model_validate(by_model)
    assert {(row["key"], row["currency"], row["llm_cost"]) for row in by_model["costs"]} == {
        ("m", "EUR", "7"), ("m", "USD", "0.60"), ("n", "USD", "0.40"),
    }  # fmt: skip
    outcomes = await console.get("/costs", params={"group_by": "outcome", "customer": "A"})
    assert {(row["key"], row["currency"], row["total_cost"]) for row in outcomes["costs"]} == {
        ("lost", "USD", "0.10"), ("superseded", "USD", "0.35"), ("completed", "USD", "0.20"), ("completed", "EUR", "7"),
    }  # fmt: skip
    for row in [*by_model["costs"], *outcomes["costs"]]:
        why = await lines_of(console, row["why"], "total_cost")
        assert sum(Decimal(line["amount"]) for line in why["lines"]) == Decimal(row["total_cost"])


async def lines_of(console: Console, why: str, figure: str) -> Any:
    answer = await console.get(f"/costs/lines{why.removeprefix('/costs/why')}&figure={figure}")
    Why.model_validate(answer)
    total = sum((Decimal(each["amount"]) for each in answer["totals"] if each["amount"] != "pending"), Decimal(0))
    assert total == sum((Decimal(line["amount"]) for line in answer["lines"]), Decimal(0))
    return answer


async def test_the_page_of_a_figure_names_records_prices_and_earlier_amounts(console: Console, spent: Spent) -> None:
    record = traced("0.10", priced_by="price_table")
    task = await spent.task("completed", ("completed", [record, billed("0.05")]))
    owner = console.database.owner
    price = await owner.fetchval("SELECT min(id) FROM lockkeeper.model_prices")
    await owner.execute(
        "UPDATE lockkeeper.cost_entries SET amount = 0.2, price_id = $1, reason = 'repricing' WHERE kind = 'llm'", price
    )
    await owner.execute("DELETE FROM lockkeeper.model_prices WHERE id = $1", price)
    page = await console.http.get(f"/costs/why?group_by=task&key={task}")
    assert page.status_code == 200
    for told in (record["record_id"], task, "0.25 USD", "<del>0.10 USD</del>", f"our table, no. {price}", "ORIGINAL"):
        assert told in page.text, told
    why = await console.get(f"/costs/lines?group_by=task&key={task}&figure=llm_cost")
    (line,) = why["lines"]
    assert (line["version"], line["reason"], line["price"]["id"]) == (2, "repricing", price)
    assert line["price"]["retired_at"] is not None
    (before,) = line["earlier"]
    assert (before["version"], before["amount"], before["price_id"]) == (1, "0.10", None)


async def test_lines_are_paged_and_exported_whole(console: Console, spent: Spent) -> None:
    for _ in range(7):
        await spent.task("completed", ("completed", [traced("0.1"), billed("0.2")]))
    seen: list[Any] = []
    cursor = ""
    while True:
        page = await console.get("/costs/lines", params={"limit": 4, "cursor": cursor})
        assert page["totals"][0]["lines"] == 14
        seen += page["lines"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert len({(line["source"], line["record_id"]) for line in seen}) == len(seen) == 14
    html = (await console.http.get("/costs/why?limit=4&agent=x")).text
    assert 'rel="next" href="?limit=4&amp;agent=x&amp;cursor=' in html
    text = (await console.http.get("/api/v1/costs/lines?format=csv")).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal("2.1")
    await console.get("/costs/lines?cursor=x", 422)


async def test_median_and_p95_are_amounts_that_tasks_had(console: Console, spent: Spent) -> None:
    for cents in (1, 2, 3, 100):
        await spent.task("completed", ("completed", [traced(f"0.{cents:03}"), billed("0")]))
    await spent.task("completed", ("completed", [traced("9")]))
    (row,) = (await console.get("/costs", params={"agent": "x"}))["costs"]
    assert (Decimal(row["median_cost"]), Decimal(row["p95_cost"])) == (Decimal("0.0025"), Decimal("0.1"))
    assert (row["pending_tasks"], row["compute_status"]) == (1, "pending")


async def test_b05_days_of_a_zone_hold_each_task_once_and_add_up_to_the_range(console: Console, spent: Spent) -> None:
    """The autumn day of 25 hours and the spring day of 23; the first and the last instant of days."""
    instants = [
        ("Europe/Berlin", "2026-10-24 22:00:00+00"), ("Europe/Berlin", "2026-10-25 22:59:59.999999+00"),
        ("Europe/Berlin", "2026-10-25 23:00:00+00"), ("America/Los_Angeles", "2026-03-08 08:00:00+00"),
        ("America/Los_Angeles", "2026-03-09 06:59:59.999999+00"), ("America/Los_Angeles", "2026-03-09 07:00:00+00"),
        ("Asia/Tokyo", "2026-05-31 14:59:59.999999+00"), ("Asia/Tokyo", "2026-05-31 15:00:00+00"),
    ]  # fmt: skip
    for zone, instant in instants:
        await spent.task("completed", ("completed", [traced("0.1"), billed("0")]), customer=zone, created_at=instant)
    expected = {
        "Europe/Berlin": {"2026-10-25": 2, "2026-10-26": 1},
        "America/Los_Angeles": {"2026-03-08": 2, "2026-03-09": 1},
        "Asia/Tokyo": {"2026-05-31": 1, "2026-06-01": 1},
    }
    for zone, days in expected.items():
        asked = {"customer": zone, "tz": zone}
        rows = (await console.get("/costs", params={**asked, "group_by": "day"}))["costs"]
        assert {row["key"]: row["tasks"] for row in rows} == days
        listed = sorted(days)
        for day, following in zip(listed, [*listed[1:], None], strict=True):
            span = {"from": day, **({"to": following} if following else {})}
            (row,) = (await console.get("/costs", params={**asked, **span}))["costs"]
            assert row["tasks"] == days[day], (zone, day)
            summary = await console.get("/summary", params={**asked, **span})
            assert (summary["total"], Decimal(summary["llm_cost"])) == (days[day], days[day] * Decimal("0.1"))
    await console.get("/costs?from=2026-01-01", 422)
    await console.get("/costs?tz=Mars/Olympus", 422)


async def test_estimate_against_bill_with_a_gap_that_its_reasons_add_up_to(console: Console, spent: Spent) -> None:
    """A minute cost 0.60 the week before; today one minute costs 0.90, one is not billed, one was corrected."""
    week_ago, today = "2026-03-01 12:00+00", "2026-03-08 12:00+00"
    await spent.task("completed", ("completed", [billed("0.60")]), leased_at=week_ago, created_at=week_ago)
    now = {"leased_at": today, "created_at": today}
    await spent.task("completed", ("completed", [billed("0.90"), traced("0.5", list_amount="0.4")]), **now)
    await spent.task("completed", ("completed", [traced("0.3", priced_by="price_table", list_amount="0.3")]), **now)
    await spent.task("completed", ("completed", [billed("0.60"), billed("-0.10", "RETRACTION"), traced("0.2")]), **now)
    answer = await console.get("/costs/reconciliation", params={"from": "2026-03-08", "tz": "UTC"})
    Reconciliation.model_validate(answer)
    by_part = {row["part"]: {name: value for name, value in row.items() if name != "agent"} for row in answer["rows"]}
    compute, llm = by_part["compute"], by_part["llm"]
    assert [Decimal(compute[name]) for name in ("estimate", "bill", "gap")] == [
        Decimal("1.8"), Decimal("1.4"), Decimal("-0.4"),
    ]  # fmt: skip
    reasons = {name: Decimal(compute[name]) for name in ("not_billed_yet", "no_estimate", "corrections", "rate")}
    assert list(reasons.values()) == [Decimal("-0.6"), 0, Decimal("-0.1"), Decimal("0.3")]
    assert (compute["pending_attempts"], sum(reasons.values())) == (1, Decimal(compute["gap"]))
    assert [Decimal(llm[name]) for name in ("estimate", "bill", "gap", "named_by_trace", "not_in_table")] == [
        Decimal("0.7"), Decimal("1.0"), Decimal("0.3"), Decimal("0.1"), Decimal("0.2"),
    ]  # fmt: skip
    text = (await console.http.get("/api/v1/costs/reconciliation?format=csv")).text
    assert len(list(csv.DictReader(io.StringIO(text)))) == 2


async def test_the_backlogs_cost_is_what_finished_tasks_cost_and_never_zero(console: Console, spent: Spent) -> None:
    await console.make_agent("x")
    await console.make_agent("fresh")
    await spent.task(
        "completed", ("lost", [traced("0.10"), billed("0.1")]), ("completed", [traced("0.20"), billed("0.1")])
    )
    for _ in range(3):
        await spent.task("enqueued", customer="A")
    await spent.task("enqueued", agent="fresh")
    answer = await console.get("/costs/forecast")
    Forecast.model_validate(answer)
    by_agent = {row["agent"]: row for row in answer["rows"]}
    assert by_agent["fresh"]["total_forecast"] == "no_history"
    x = by_agent["x"]
    assert (x["waiting_tasks"], x["waiting_tokens"], x["llm_tasks"]) == (3, 3000, 1)
    assert [Decimal(x[name]) for name in ("llm_forecast", "compute_forecast", "total_forecast")] == [
        Decimal("0.9"), Decimal("0.6"), Decimal("1.5"),
    ]  # fmt: skip
    assert len((await console.get("/costs/forecast", params={"customer": "A"}))["rows"]) == 1


async def test_the_underwriters_calls_stand_in_the_same_ledger(console: Console) -> None:
    owner = console.database.owner
    run_id, message = uuid.uuid4(), uuid.uuid4()
    await owner.execute(
        "INSERT INTO agent_ops.agent_runs (run_id, workflow_id, user_name, applicant, amount, purpose, model, turn_limit, "
        "request, request_digest, state, finished_at) "
        "VALUES ($1, 'w', 'u', 'North Mill', 1, 'auto', 'm', 3, '{}', 'd', 'completed', now())",
        run_id,
    )
    await owner.execute(
        "INSERT INTO agent_ops.agent_messages (message_id, run_id, turn, position, role, state) "
        "VALUES ($1, $2, 1, 1, 'assistant', 'complete')",
        message, run_id,
    )  # fmt: skip
    price_answer = load("services.underwriting_worker")["price_answer"].sql
    for _ in range(2):
        await owner.execute(price_answer, message, run_id, "rule-based-stand-in", 1_000, 100, 10)
    (row,) = (await console.get("/costs", params={"agent": "underwriting"}))["costs"]
    assert (Decimal(row["total_cost"]), row["tasks"], row["attempts"]) == (Decimal("0.00021075"), 1, 1)
    (by_customer,) = (await console.get("/costs", params={"group_by": "customer"}))["costs"]
    assert by_customer["key"] == "North Mill"
    why = await lines_of(console, row["why"], "llm_cost")
    (line,) = why["lines"]
    assert (line["source"], line["record_id"], line["price"]["note"] != "") == ("underwriting", str(message), True)
    assert (await console.http.get(row["why"])).status_code == 200
