"""History at new prices: on request, exact, resumable, and no old figure is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from services.cost_attributor.loops import RepriceLines
from services.cost_attributor.settings import CostAttributorSettings
from shared.contract.ids import uuid7
from tests.conftest import TestDatabase
from tests.integration.cost_attributor.conftest import Attributor, Ended
from tests.integration.cost_attributor.test_ledger import STAND_IN, learn, ledger_violations, trace

MakeAttributor = Callable[..., Attributor]
FROM, TO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


def repricer(it: Attributor) -> RepriceLines:
    return RepriceLines(it.storage, it.notes, CostAttributorSettings())


async def wish(database: TestDatabase, models: list[str] | None = None, span: tuple[Any, Any] = (FROM, TO)) -> UUID:
    made: UUID = await database.owner.fetchval(
        "INSERT INTO lockkeeper.repricings (requested_by, from_at, to_at, models) VALUES ('me', $1, $2, $3) RETURNING id",
        *span, models,
    )  # fmt: skip
    return made


async def outcome(database: TestDatabase, made: UUID) -> tuple[str, int, dict[str, Decimal]]:
    row = await database.owner.fetchrow("SELECT * FROM lockkeeper.repricings WHERE id = $1", made)
    assert row is not None
    return row["status"], row["changed"], {name: Decimal(change) for name, change in row["difference"].items()}


async def double_prices(database: TestDatabase, model: str = "rule-based-stand-in") -> None:
    await database.owner.execute(
        "WITH old AS (DELETE FROM lockkeeper.model_prices WHERE model = $1 RETURNING *) "
        "INSERT INTO lockkeeper.model_prices (model, currency, input_price, output_price, cache_read_price, valid_from) "
        "SELECT model, currency, input_price * 2, output_price * 2, cache_read_price * 2, valid_from FROM old",
        model,
    )


async def test_history_is_priced_anew_on_request_and_the_old_figure_kept(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt(usage=[STAND_IN], seconds_ago=901, trace_state="unavailable")
    named = await ended.attempt(usage=[STAND_IN], seconds_ago=901, trace_state="unavailable")
    it = make_attributor()
    await learn(it, ended)
    await database.owner.execute("UPDATE lockkeeper.task_attempts SET cost_status = 'pending' WHERE id = $1", named)
    await learn(it, ended, trace(cost=Decimal("0.5")))
    before = Decimal("0.00021075")
    await double_prices(database)
    # Reading again does not price anew, and neither does anything else that nobody asked for.
    await database.owner.execute("UPDATE lockkeeper.task_attempts SET cost_status = 'pending' WHERE id = $1", attempt)
    await learn(it, ended)
    assert (await ended.row(attempt))["llm_cost"] == before
    made = await wish(database)
    it.notes.heard.clear()
    assert await repricer(it).run_once() is True
    assert await outcome(database, made) == ("done", 1, {"USD": before})
    row = await ended.row(attempt)
    assert (row["llm_cost"], row["cost_status"]) == (2 * before, "final")
    assert str(row["task_id"]) in it.heard()
    # What the trace named stays; only what our table makes of it is shown anew.
    assert (await ended.row(named))["llm_cost"] == Decimal("0.5")
    (line,) = await ended.lines(attempt)
    assert (line["version"], line["reason"]) == (2, f"repricing {made}")
    (old,) = await database.owner.fetch("SELECT * FROM lockkeeper.cost_entry_versions WHERE attempt_id = $1", attempt)
    assert (old["amount"], old["version"], old["reason"]) == (before, 1, "read")
    priced = await database.owner.fetchval(
        "SELECT input_price FROM lockkeeper.prices_ever WHERE id = $1 AND retired_at IS NOT NULL", old["price_id"]
    )
    assert priced == Decimal("0.15")
    assert await ledger_violations(ended) == []
    spent = await database.owner.fetchval("SELECT sum(llm_cost) FROM lockkeeper.spending WHERE scope = 'agent'")
    assert spent == 2 * before + Decimal("0.5")
    # Once more changes nothing.
    again = await wish(database)
    await repricer(it).run_once()
    assert await outcome(database, again) == ("done", 0, {})
    assert (await ended.lines(attempt)) == [line]


async def test_a_model_that_gets_its_price_later_is_whole_then(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    both = [STAND_IN, STAND_IN | {"model": "new-model"}]
    attempt = await ended.attempt(usage=both, seconds_ago=901, trace_state="unavailable")
    uncounted = await ended.attempt(
        usage=[both[1], {"model": "other", "calls": 1}], seconds_ago=901, trace_state="unavailable"
    )
    it = make_attributor()
    await learn(it, ended)
    assert (await ended.row(attempt))["cost_status"] == "partial"
    await database.owner.execute(
        "INSERT INTO lockkeeper.model_prices (model, input_price, output_price, cache_read_price, valid_from) "
        "VALUES ('new-model', 1, 2, 3, '2024-01-01+00')"
    )
    await wish(database, models=["new-model"])
    await repricer(it).run_once()
    row = await ended.row(attempt)
    new = (1_000 * Decimal(1) + 100 * Decimal(2) + 10 * Decimal(3)) / 1_000_000
    assert (row["llm_cost"], row["cost_status"]) == (Decimal("0.00021075") + new, "final")
    # A price does not tell what an agent did not count.
    row = await ended.row(uncounted)
    assert (row["llm_cost"], row["cost_status"]) == (new, "partial")
    usage = await database.owner.fetch(
        "SELECT model, amount FROM lockkeeper.model_usage WHERE attempt_id = $1 ORDER BY model", attempt
    )
    assert [(each["model"], each["amount"]) for each in usage] == [
        ("new-model", new), ("rule-based-stand-in", Decimal("0.00021075")),
    ]  # fmt: skip


async def test_only_the_models_and_the_time_that_were_named_change(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt(usage=[STAND_IN], seconds_ago=901, trace_state="unavailable")
    it = make_attributor()
    await learn(it, ended)
    before = (await ended.row(attempt))["llm_cost"]
    await double_prices(database)
    await wish(database, models=["gpt-5"])
    await wish(database, span=(FROM, datetime(2021, 1, 1, tzinfo=UTC)))
    while await repricer(it).run_once():
        pass
    assert (await ended.row(attempt))["llm_cost"] == before
    # A price that is gone takes nothing away.
    await database.owner.execute("DELETE FROM lockkeeper.model_prices WHERE model = 'rule-based-stand-in'")
    await wish(database)
    await repricer(it).run_once()
    assert (await ended.row(attempt))["llm_cost"] == before


async def test_a_repricing_that_was_killed_goes_on_where_it_was_and_counts_once(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(7):
        await ended.attempt(usage=[STAND_IN], seconds_ago=901, trace_state="unavailable")
    first, second = make_attributor("a"), make_attributor("b")
    await learn(first, ended)
    await double_prices(database)
    made = await wish(database)
    monkeypatch.setattr("services.cost_attributor.loops.LINES_PER_TRANSACTION", 2)
    taken = await first.storage.take_repricing(60)
    assert taken is not None
    step = await first.storage.reprice(taken, None, 2, 60)
    assert step is not None and step.changed == 2
    # Killed here; its lease ends, and what it still wants to write is refused.
    await database.owner.execute("UPDATE lockkeeper.repricings SET lease_expires_at = now() - interval '1 second'")
    assert await repricer(second).run_once() is True
    assert await first.storage.reprice(taken, step.after_attempt, 2, 60) is None
    assert await outcome(database, made) == ("done", 7, {"USD": 7 * Decimal("0.00021075")})


async def test_the_underwriters_calls_are_priced_anew_with_the_rest(
    database: TestDatabase, make_attributor: MakeAttributor
) -> None:
    call = uuid7()
    await database.owner.execute(
        "INSERT INTO lockkeeper.cost_entries (source, record_id, attempt_id, task_id, kind, model, input_tokens, "
        "output_tokens, cache_read_tokens, amount, priced_by) "
        "VALUES ('underwriting', $1::uuid::text, $1, $1, 'llm', 'rule-based-stand-in', 1000, 0, 0, 0.00015, 'price_table')",
        call,
    )
    await double_prices(database)
    made = await wish(database)
    await repricer(make_attributor()).run_once()
    assert await outcome(database, made) == ("done", 1, {"USD": Decimal("0.00015")})
