from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cost_attributor.messages import EndedAttempt, Finding, RunShare, UsageRecord
from services.cost_attributor.policy import attribute, reported_parts, split_bill
from shared.vendors.mlflow_traces import TraceFacts, read_facts

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE = {"model": "m", "input_tokens": 10, "output_tokens": 5, "calls": 1}
TWO = {"model": "n", "input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 3, "calls": 1}
TRACE = TraceFacts("tr", None, True, NOW, 10, 5, 0, 0, Decimal("0.01"))


def ended(**own: Any) -> EndedAttempt:
    values: dict[str, Any] = {
        "attempt_id": uuid.UUID(int=1), "task_id": uuid.UUID(int=2), "agent": "a", "trace_id": None, "trace_state": None,
        "usage": None, "ended_seconds": 1.0, "used_at": NOW, "never_ran": False,
    }  # fmt: skip
    return EndedAttempt(**(values | own))


def look(attempt: EndedAttempt, *traces: TraceFacts) -> Any:
    return attribute(attempt, traces, unknown_after=900)


def test_a_trace_says_tokens_and_cost() -> None:
    found = look(ended(usage=[ONE]), TRACE)
    (line,) = found.lines
    assert found.finding is Finding.FINAL
    assert (line.source, line.record_id, line.model) == ("trace", "tr", "m")
    assert (line.input_tokens, line.output_tokens, line.amount) == (10, 5, Decimal("0.01"))


def test_m05_without_a_trace_the_attempt_waits_and_is_unknown_in_the_end() -> None:
    assert look(ended()).finding is Finding.PENDING
    assert look(ended(ended_seconds=899)).lines == []
    late = look(ended(ended_seconds=900))
    assert (late.finding, late.lines) == (Finding.UNKNOWN, [])


def test_what_the_agent_reported_counts_when_the_trace_does_not_come() -> None:
    assert look(ended(usage=[ONE, TWO], ended_seconds=899)).finding is Finding.PENDING
    found = look(ended(usage=[ONE, TWO], ended_seconds=900))
    (line,) = found.lines
    assert (found.finding, line.source, line.model, line.amount) == (Finding.FINAL, "callback", "m, n", None)
    assert (line.input_tokens, line.output_tokens, line.cache_read_tokens) == (11, 7, 3)
    assert [part.model for part in line.parts] == ["m", "n"]


def test_m07_a_complete_trace_without_usage_lets_the_agents_word_count_at_once() -> None:
    silent = replace(TRACE, input_tokens=None, output_tokens=None, cost=None)
    assert look(ended(usage=[ONE], trace_state="unverified"), silent).finding is Finding.PENDING
    assert look(ended(usage=[ONE], trace_state="stored"), silent).lines[0].source == "callback"
    # Nobody says anything: that is unknown, not free.
    assert look(ended(trace_state="stored", ended_seconds=901), silent).finding is Finding.UNKNOWN


def test_m07_calls_that_nobody_counted_are_not_zero() -> None:
    uncounted = {"model": "x", "input_tokens": 0, "output_tokens": 0, "calls": 3}
    assert reported_parts([uncounted]) == []
    assert look(ended(usage=[uncounted], ended_seconds=901)).finding is Finding.UNKNOWN
    assert look(ended(usage=[uncounted, ONE], ended_seconds=901)).finding is Finding.PARTIAL


def test_zero_is_only_what_somebody_vouches_for() -> None:
    assert [line.record_id for line in look(ended(usage=[])).lines] == ["no_model_called"]
    assert [line.record_id for line in look(ended(never_ran=True)).lines] == ["no_run", "no_machine"]
    assert look(ended(usage=[])).lines[0].amount == Decimal(0)
    # A trace that knows better is believed.
    assert look(ended(usage=[]), TRACE).lines[0].source == "trace"


def test_m05_the_agents_word_is_not_the_last_where_it_stored_a_trace_that_is_not_found() -> None:
    for state, finding in (
        ("stored", Finding.PARTIAL),
        ("unverified", Finding.PARTIAL),
        ("unavailable", Finding.FINAL),
    ):
        assert look(ended(usage=[ONE], trace_state=state, ended_seconds=901)).finding is finding


def test_m01_a_trace_that_has_not_ended_is_waited_for_and_then_taken_as_far_as_it_got() -> None:
    running = replace(TRACE, is_ended=False)
    assert look(ended(), running).finding is Finding.PENDING
    found = look(ended(ended_seconds=901), running)
    assert (found.finding, found.lines[0].input_tokens) == (Finding.PARTIAL, 10)


def test_several_traces_of_one_attempt_are_lines_of_their_own() -> None:
    found = look(ended(), TRACE, replace(TRACE, trace_id="tr2", cost=None))
    assert [(line.record_id, line.amount) for line in found.lines] == [("tr", Decimal("0.01")), ("tr2", None)]


def test_a_trace_without_cost_is_priced_by_the_models_that_the_agent_named() -> None:
    unpriced = replace(TRACE, cost=None)
    assert [part.model for part in look(ended(usage=[ONE]), unpriced).lines[0].parts] == ["m"]
    both = replace(unpriced, input_tokens=11, output_tokens=7, cache_read_tokens=3)
    assert [part.model for part in look(ended(usage=[ONE, TWO]), both).lines[0].parts] == ["m", "n"]
    # The agent's split does not add up to the totals: which model it was is not known, so no price is made up.
    late = ended(usage=[ONE, TWO], ended_seconds=901)
    assert [part.model for part in look(late, unpriced).lines[0].parts] == [None]


def test_m05_an_agent_that_counted_more_than_its_traces_waits_for_the_rest_and_is_noticed() -> None:
    more = [ONE | {"input_tokens": 11}]
    assert look(ended(usage=more), TRACE).finding is Finding.PENDING
    late = look(ended(usage=more, ended_seconds=901), TRACE)
    assert (late.finding, late.disagrees, late.lines[0].is_whole) == (Finding.PARTIAL, True, False)
    assert not look(ended(usage=[ONE]), TRACE).disagrees


def info(**own: Any) -> Any:
    values: dict[str, Any] = {
        "trace_id": "tr", "client_request_id": "a", "state": SimpleNamespace(value="OK"),
        "request_time": 1_772_366_400_000, "trace_metadata": {},
    }  # fmt: skip
    return SimpleNamespace(**(values | own))


def test_counters_of_a_trace_are_made_disjoint() -> None:
    usage = (
        '{"input_tokens": 100, "output_tokens": 7, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10}'
    )
    facts = read_facts(
        info(trace_metadata={"mlflow.trace.tokenUsage": usage, "mlflow.trace.cost": '{"total_cost": 1e-5}'})
    )
    assert (facts.input_tokens, facts.output_tokens, facts.cache_read_tokens, facts.cache_write_tokens) == (
        30,
        7,
        60,
        10,
    )
    assert (facts.cost, facts.started_at) == (Decimal("0.00001"), NOW)


@pytest.mark.parametrize(
    "usage",
    [None, "", "{", "[]", "null", '{"input_tokens": 5}', '{"input_tokens": "x", "output_tokens": 1}',
     '{"input_tokens": -1, "output_tokens": 1}', '{"input_tokens": true, "output_tokens": 1}',
     '{"input_tokens": NaN, "output_tokens": 1}', '{"input_tokens": 1e300, "output_tokens": 1}'],
)  # fmt: skip
def test_m07_usage_that_cannot_be_read_is_unknown(usage: str | None) -> None:
    facts = read_facts(
        info(trace_metadata={"mlflow.trace.tokenUsage": usage, "mlflow.trace.cost": '{"total_cost": "free"}'})
    )
    assert not facts.has_usage
    assert (facts.input_tokens, facts.cost) == (None, None)


def test_m07_numbers_written_as_text_are_numbers() -> None:
    facts = read_facts(info(trace_metadata={"mlflow.trace.tokenUsage": '{"input_tokens": "12", "output_tokens": 3.0}'}))
    assert (facts.input_tokens, facts.output_tokens) == (12, 3)


def record(quantity: str, price: str | None = "0.35", run_id: int = 1, record_id: str = "r") -> UsageRecord:
    unit_price = None if price is None else Decimal(price)
    return UsageRecord(record_id, run_id, "ORIGINAL", "SKU", "DBU", Decimal(quantity), unit_price, "USD", NOW, NOW)


def share(number: int, seconds: Decimal) -> RunShare:
    return RunShare(1, uuid.UUID(int=number), uuid.UUID(int=number), NOW, NOW, seconds)


@given(
    quantity=st.decimals(-1_000, 1_000, places=9),
    price=st.decimals(0, 100, places=6),
    seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
)
def test_the_parts_of_a_bill_add_up_to_it_exactly(quantity: Decimal, price: Decimal, seconds: list[float]) -> None:
    shares = [share(n, Decimal(str(each))) for n, each in enumerate(seconds)]
    bills = split_bill([record(str(quantity), str(price))], shares)
    assert len(bills) == len(shares)
    assert sum(bill.quantity for bill in bills) == quantity
    assert sum(bill.amount for bill in bills if bill.amount is not None) == quantity * price


def test_a_run_is_split_by_the_time_of_its_attempts() -> None:
    shares = [share(n, Decimal(seconds)) for n, seconds in enumerate([30, 10])]
    bills = split_bill([record("4"), record("1", None, record_id="u"), record("9", run_id=2)], shares)
    assert [(str(bill.quantity.normalize()), bill.amount) for bill in bills] == [
        ("3", Decimal("1.05")), ("1", Decimal("0.35")), ("0.75", None), ("0.25", None),
    ]  # fmt: skip


def test_a_run_without_measured_time_is_split_evenly() -> None:
    shares = [share(n, Decimal(0)) for n in range(4)]
    assert {bill.quantity for bill in split_bill([record("1")], shares)} == {Decimal("0.25")}


def test_an_amount_has_the_digits_that_it_needs() -> None:
    """The platform's tables have 18 places in both factors."""
    [bill] = split_bill([record("0.001320000000000000", "0.070000000000000000")], [share(1, Decimal(5))])
    assert str(bill.amount) == "0.0000924"
