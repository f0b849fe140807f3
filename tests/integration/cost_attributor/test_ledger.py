"""The ledger and its sums: idempotent, exact, dated prices, and unknown is never zero."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from services.cost_attributor.messages import EndedAttempt, Finding
from services.cost_attributor.policy import attribute
from shared.db.invariants import Violation, violations
from shared.vendors.mlflow_traces import TraceFacts
from tests.conftest import TestDatabase
from tests.integration.cost_attributor.conftest import Attributor, Ended

STAND_IN = {
    "model": "rule-based-stand-in",
    "input_tokens": 1_000,
    "output_tokens": 100,
    "cache_read_tokens": 10,
    "calls": 2,
}
MakeAttributor = Callable[..., Attributor]


async def ledger_violations(ended: Ended) -> list[Violation]:
    """These attempts are staged without the life of a task; what is said of costs must hold all the same."""
    return [each for each in await violations(ended.owner) if "cost" in each.name]


async def learn(attributor: Attributor, ended: Ended, *traces: TraceFacts, after: float = 900) -> None:
    """Attribute everything that is due as if these were its traces."""
    await ended.look_again()
    taken = await attributor.storage.take_unattributed(10)
    await attributor.storage.record([attribute(each, traces, unknown_after=after) for each in taken])


def trace(**own: Any) -> TraceFacts:
    values: dict[str, Any] = {
        "trace_id": "tr", "client_request_id": None, "is_ended": True, "started_at": None, "input_tokens": 1_000,
        "output_tokens": 100, "cache_read_tokens": 10, "cache_write_tokens": 0, "cost": None,
    }  # fmt: skip
    return TraceFacts(**(values | own))


async def test_the_agents_word_is_priced_by_the_table(make_attributor: MakeAttributor, ended: Ended) -> None:
    attempt = await ended.attempt(usage=[STAND_IN], trace_state="unavailable", seconds_ago=901)
    it = make_attributor()
    assert await it.traces.run_once() is False
    row, (line,) = await ended.row(attempt), await ended.lines(attempt)
    # 1,000 at 0.15, 100 at 0.60 and 10 at 0.075 dollars a million.
    assert row["llm_cost"] == line["amount"] == Decimal("0.00021075")
    assert (row["input_tokens"], row["output_tokens"], row["cache_read_tokens"], row["cache_write_tokens"]) == (
        1_000,
        100,
        10,
        0,
    )
    assert (row["llm_cost_source"], row["cost_status"], line["source"]) == ("price_table", "final", "callback")
    price = await ended.owner.fetchrow("SELECT * FROM lockkeeper.model_prices WHERE id = $1", line["price_id"])
    assert price is not None
    assert "stand-in" in price["note"]
    assert it.heard() == {str(row["task_id"])}
    assert await ledger_violations(ended) == []


async def test_a_traces_own_cost_is_preferred_and_marked(make_attributor: MakeAttributor, ended: Ended) -> None:
    attempt = await ended.attempt(usage=[STAND_IN])
    await learn(make_attributor(), ended, trace(cost=Decimal("0.5")))
    row = await ended.row(attempt)
    assert (row["llm_cost"], row["llm_cost_source"], row["cost_status"]) == (Decimal("0.5"), "trace", "final")


async def test_writing_the_same_lines_again_changes_nothing(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt(usage=[STAND_IN])
    await learn(make_attributor(), ended, trace())
    before = [dict(line) for line in await ended.lines(attempt)]
    await database.owner.execute("UPDATE lockkeeper.task_attempts SET cost_status = 'pending'")
    await learn(make_attributor(), ended, trace())
    assert [dict(line) for line in await ended.lines(attempt)] == before
    assert (await ended.row(attempt))["llm_cost"] == Decimal("0.00021075")


async def test_a_trace_that_comes_after_all_replaces_the_agents_word(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt(usage=[STAND_IN], seconds_ago=901)
    await learn(make_attributor(), ended)
    assert (await ended.row(attempt))["llm_cost"] == Decimal("0.00021075")
    await database.owner.execute("UPDATE lockkeeper.task_attempts SET cost_status = 'pending'")
    await learn(make_attributor(), ended, trace(input_tokens=2_000, cost=Decimal("0.9")))
    row = await ended.row(attempt)
    assert (row["input_tokens"], row["llm_cost"]) == (2_000, Decimal("0.9"))
    assert [line["source"] for line in await ended.lines(attempt)] == ["callback", "trace"]
    assert await ledger_violations(ended) == []


@pytest.mark.parametrize(
    "usage", [[STAND_IN | {"model": "nobody-knows-it"}], [STAND_IN, STAND_IN | {"model": "other"}]]
)
async def test_an_unpriced_model_has_tokens_and_no_amount(
    make_attributor: MakeAttributor, ended: Ended, usage: list[dict[str, Any]]
) -> None:
    attempt = await ended.attempt(usage=usage, seconds_ago=901)
    await learn(make_attributor(), ended)
    row, (line,) = await ended.row(attempt), await ended.lines(attempt)
    assert (line["amount"], line["priced_by"], row["llm_cost"], row["cost_status"]) == (None, None, None, "partial")
    assert row["input_tokens"] == 1_000 * len(usage)


async def test_prices_hold_from_their_first_instant_to_before_their_last(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    await database.owner.execute(
        "INSERT INTO lockkeeper.model_prices (model, input_price, output_price, valid_from, valid_to) VALUES "
        "('m', 1, 0, '2026-01-01 00:00+00', '2026-01-02 00:00+00'), ('m', 2, 0, '2026-01-02 00:00+00', NULL)"
    )
    usage = [{"model": "m", "input_tokens": 1_000_000, "output_tokens": 0, "calls": 1}]
    amounts = []
    for instant in (
        "2025-12-31 23:59:59.999999+00",
        "2026-01-01 00:00+00",
        "2026-01-01 23:59:59.999999+00",
        "2026-01-02 00:00+00",
    ):
        attempt = await ended.attempt(usage=usage)
        await database.owner.execute(
            "UPDATE lockkeeper.task_attempts SET started_at = $2::text::timestamptz WHERE id = $1", attempt, instant
        )
        await learn(make_attributor(), ended, after=0)
        amounts.append((await ended.row(attempt))["llm_cost"])
    assert amounts == [None, 1, 1, 2]


async def test_m05_unknown_is_never_zero(make_attributor: MakeAttributor, ended: Ended) -> None:
    early = await ended.attempt(trace_state=None, status="lost")
    late = await ended.attempt(trace_state=None, status="lost", seconds_ago=901)
    it = make_attributor()
    await it.traces.run_once()
    for attempt, status in ((early, "pending"), (late, "unknown")):
        row = await ended.row(attempt)
        assert (row["cost_status"], row["llm_cost"], row["input_tokens"], row["compute_cost"]) == (
            status,
            None,
            None,
            None,
        )
        assert await ended.lines(attempt) == []
    # Its callback comes after all, and with it another look.
    await ended.owner.execute(
        "UPDATE lockkeeper.task_attempts SET usage = $2, trace_state = 'unavailable' WHERE id = $1", late, [STAND_IN]
    )
    it.traces.hear([str(late)])
    await it.traces.run_once()
    assert (await ended.row(late))["cost_status"] == "final"


async def test_what_never_ran_or_called_no_model_costs_nothing_and_says_why(
    make_attributor: MakeAttributor, ended: Ended
) -> None:
    refused = await ended.attempt(status="failed", trace_state=None)
    await ended.owner.execute("UPDATE lockkeeper.task_attempts SET submitted_at = NULL WHERE id = $1", refused)
    silent = await ended.attempt(usage=[], trace_state="unavailable", status="failed")
    await make_attributor().traces.run_once()
    for attempt, why, compute in ((refused, ["no_machine", "no_run"], 0), (silent, ["no_model_called"], None)):
        row = await ended.row(attempt)
        assert (row["llm_cost"], row["input_tokens"], row["cost_status"]) == (0, 0, "final")
        assert row["compute_cost"] == compute
        assert [line["record_id"] for line in await ended.lines(attempt)] == why


async def test_replicas_share_the_work_and_none_waits_for_a_locked_attempt(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempts = [await ended.attempt(usage=[STAND_IN], seconds_ago=901) for _ in range(6)]
    one, two = make_attributor("a"), make_attributor("b")
    async with database.owner.transaction():
        await database.owner.execute("SELECT FROM lockkeeper.task_attempts WHERE id = $1 FOR UPDATE", attempts[0])
        first, second = await one.storage.take_unattributed(3), await two.storage.take_unattributed(10)
        assert sorted(each.attempt_id for each in (*first, *second)) == sorted(attempts[1:])
        # One that is locked between the look and the writing is left for the next look, too.
        held: list[EndedAttempt] = [*first, EndedAttempt(**{**_fields(first[0]), "attempt_id": attempts[0]})]
        changed = await one.storage.record([attribute(each, (), unknown_after=900) for each in held])
        assert len(changed) == 3
    assert (await ended.row(attempts[0]))["cost_status"] == "pending"
    assert await ended.lines(attempts[0]) == []


def _fields(attempt: EndedAttempt) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in EndedAttempt.__slots__}


async def test_amounts_stay_exact_over_many_lines(make_attributor: MakeAttributor, ended: Ended) -> None:
    usage = [STAND_IN | {"input_tokens": 123_456_789_012_345, "output_tokens": 7, "cache_read_tokens": 1}]
    attempt = await ended.attempt(usage=usage, seconds_ago=901)
    await learn(make_attributor(), ended)
    exact = (Decimal(123_456_789_012_345) * Decimal("0.15") + 7 * Decimal("0.6") + Decimal("0.075")) / 1_000_000
    assert (await ended.row(attempt))["llm_cost"] == exact


async def test_a_pending_attempt_is_looked_at_less_and_less_often(
    make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt(trace_state=None)
    it = make_attributor()
    assert len(await it.storage.take_unattributed(10)) == 1
    assert await it.storage.take_unattributed(10) == []
    for checks, wait in ((1, 5), (4, 16), (9, 60), (30, 60)):
        await ended.owner.execute(
            "UPDATE lockkeeper.task_attempts SET cost_checks = $2, "
            "cost_checked_at = lockkeeper.clock() - make_interval(secs => $3::float8) WHERE id = $1",
            attempt, checks, wait - 1,
        )  # fmt: skip
        assert await it.storage.take_unattributed(10) == []
        await ended.owner.execute(
            "UPDATE lockkeeper.task_attempts SET cost_checked_at = cost_checked_at - interval '2 seconds' WHERE id = $1",
            attempt,
        )
        assert [each.attempt_id for each in await it.storage.take_unattributed(10)] == [attempt]


def test_findings_are_the_columns_words() -> None:
    assert {finding.value for finding in Finding} == {"pending", "partial", "final", "unknown"}
