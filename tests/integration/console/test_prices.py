"""The price table: dated, versioned, audited; changed by API and command, history only on request."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockkeeper.cli import lockkeeper
from lockkeeper.prices import read_prices
from services.console.messages.costs import Budgets
from services.console.messages.prices import Price, PriceList, Repricing
from services.console.policy.prices import place_of
from tests.conftest import TestDatabase
from tests.integration.console.conftest import Console

LISTED = Path(__file__).parents[3] / "lockkeeper" / "list_prices.csv"


def price(**own: Any) -> dict[str, Any]:
    return {"model": "m", "input_price": "1", "output_price": "2", "valid_from": "2026-01-01T00:00:00Z", **own}


async def put(console: Console, *prices: dict[str, Any], status: int = 200) -> Any:
    return await console.call("PUT", "/prices", status, json={"prices": prices})


async def test_prices_follow_each_other_without_gap_or_overlap(console: Console) -> None:
    await put(console, price(), price(valid_from="2026-03-01T00:00:00Z", input_price="3"))
    # One between them that is learned of later.
    await put(console, price(valid_from="2026-02-01T01:00:00+01:00", input_price="2"))
    table = await console.get("/prices", params={"model": "m"})
    PriceList.model_validate(table)
    assert [(row["valid_from"][:10], row["valid_to"], row["input_price"]) for row in table["prices"]] == [
        ("2026-01-01", "2026-02-01T00:00:00+00:00", "1"),
        ("2026-02-01", "2026-03-01T00:00:00+00:00", "2"),
        ("2026-03-01", None, "3"),
    ]


async def test_a_price_that_was_wrong_is_replaced_kept_and_audited(console: Console) -> None:
    assert await put(console, price()) == {"changed": 1, "unchanged": 0}
    assert await put(console, price()) == {"changed": 0, "unchanged": 1}
    assert await put(console, price(input_price="1.5", note="the list was misread")) == {"changed": 1, "unchanged": 0}
    now, old = (await console.get("/prices", params={"model": "m", "retired": "true"}))["prices"]
    if now["retired_at"] is not None:
        now, old = old, now
    assert (now["input_price"], now["retired_at"]) == ("1.5", None)
    assert (old["input_price"], old["retired_at"] is not None, old["id"] != now["id"]) == ("1", True, True)
    (entry, _) = (await console.get("/audit", params={"target": "price/m"}))["entries"]
    assert (entry["action"], entry["before"]["input_price"], entry["after"]["input_price"]) == ("set_price", "1", "1.5")


async def test_prices_that_are_none_are_refused_and_all_or_none_is_written(console: Console) -> None:
    for wrong in (
        {"input_price": "-1"}, {"input_price": "much"}, {"valid_from": "2026-01-01"}, {"currency": "usd"},
        {"model": ""}, {"colour": "red"}, {"input_price": "0.0000000001"},
    ):  # fmt: skip
        await put(console, price(model="good"), price(**wrong), status=422)
    assert (await console.get("/prices", params={"model": "good"}))["prices"] == []


async def test_the_list_prices_of_this_version_are_those_that_a_database_starts_with(console: Console) -> None:
    listed = read_prices(LISTED.read_text(encoding="utf-8"))
    assert await put(console, *listed) == {"changed": 0, "unchanged": len(listed)}


async def test_a_repricing_is_asked_for_audited_and_followed(console: Console) -> None:
    body = {"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z", "models": ["m"]}
    made = await console.post("/prices/repricings", 202, json=body)
    found = await console.get(f"/prices/repricings/{made['repricing_id']}")
    Repricing.model_validate(found)
    assert (found["status"], found["models"], found["requested_by"]) == ("pending", ["m"], "local")
    audit = await console.get("/audit", params={"target": f"repricing/{made['repricing_id']}"})
    assert [entry["action"] for entry in audit["entries"]] == ["reprice"]
    await console.post("/prices/repricings", 422, json={**body, "to": body["from"]})
    await console.get(f"/prices/repricings/{uuid.uuid4()}", 404)


def test_a_price_of_another_currency_ends_none() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    stands = {"id": 1, "currency": "EUR", "valid_from": datetime(2025, 1, 1, tzinfo=UTC), "valid_to": None}
    new = Price(model="m", input_price=Decimal(1), output_price=Decimal(1), valid_from=at)
    assert (place_of(new, [stands]).ended, place_of(new, [{**stands, "currency": "USD"}]).ended) == (None, 1)


@pytest.mark.parametrize("share", ["0.79", "0.80", "1.2"])
async def test_a_budget_is_told_of_once_for_each_share_and_period(
    console: Console, database: TestDatabase, share: str
) -> None:
    from services.cost_attributor.loops import WatchBudgets
    from services.cost_attributor.settings import CostAttributorSettings
    from services.cost_attributor.storage import CostStorage

    await console.make_agent("x", daily_budget=10, monthly_budget=1000)
    await database.owner.execute(
        "INSERT INTO lockkeeper.spending (scope, name, day, llm_cost, compute_cost) "
        "VALUES ('agent', 'x', (now() AT TIME ZONE 'UTC')::date, $1::text::numeric * 10, 0)",
        share,
    )
    pool = await database.open("cost_attributor")
    watchers = [WatchBudgets(CostStorage(pool, name), CostAttributorSettings()) for name in "ab"]
    for each in (*watchers, *watchers):
        await each.run_once()
    await pool.close()
    answer = await console.get("/costs/budgets")
    Budgets.model_validate(answer)
    told = sorted(Decimal(alert["share"]) for alert in answer["alerts"])
    assert told == [each for each in (Decimal("0.8"), Decimal(1)) if Decimal(share) >= each]
    (budget,) = answer["budgets"]
    assert Decimal(budget["spent_today"]) == Decimal(share) * 10


async def test_the_command_says_all_of_it(console: Console) -> None:
    def run(*words: str) -> str:
        shown = CliRunner().invoke(lockkeeper, [*words, "--url", console.url])
        assert shown.exit_code == 0, (words, shown.output, shown.exception)
        return shown.output

    async def say(*words: str) -> str:
        return await asyncio.to_thread(run, *words)

    assert "0 prices changed, 15 were so already" in await say("prices", "import")
    put = ("prices", "set", "m", "--from", "2026-01-01T00:00:00Z", "--input", "1.5", "--output", "2")
    assert "1 prices changed" in await say(*put)
    assert "1.5" in await say("prices", "list", "--model", "m")
    span = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-02-01T00:00:00Z")
    made = json.loads(await say("prices", "reprice", *span, "--json"))
    assert "pending" in await say("prices", "repricing", made["repricing_id"])
    await console.make_agent("x", daily_budget=1)
    await console.enqueue(agent="x", customer="A")
    assert "no_history" in await say("costs", "forecast", "--days", "1")
    assert "x" in await say("costs", "budgets")
    assert json.loads(await say("costs", "why", "--figure", "llm_cost", "--json"))["lines"] == []
    assert "AGENT" in await say("costs", "reconcile")
    assert "agent" in await say("costs", "reconcile", "--csv")
    for group_by in ("agent", "day", "model", "outcome"):
        await say("costs", "--group-by", group_by, "--tz", "Europe/Berlin", "--from", "2026-01-01")
    assert "A" in await say("costs", "--group-by", "customer", "--csv")
