"""Usage is counted as the provider said it, and unknown is not zero."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from shared.agent_kit.usage import CallUsage, UsageLedger, read_usage


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 20}, CallUsage(100, 20)),
        ({"prompt_tokens": "100", "completion_tokens": "20"}, CallUsage(100, 20)),
        (
            {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}},
            CallUsage(40, 20, 60),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "cache_read_input_tokens": 10,
                "cache_creation_input_tokens": 5,
            },
            CallUsage(85, 20, 10, 5),
        ),
        ({"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.25}, CallUsage(1, 1, cost=Decimal("0.25"))),
    ],
)
def test_the_four_counters_are_disjoint(raw: dict[str, Any], usage: CallUsage) -> None:
    assert read_usage(raw) == usage
    assert usage.prompt_tokens == int(raw["prompt_tokens"])


@pytest.mark.parametrize("raw", [None, {}, {"prompt_tokens": 5}, {"prompt_tokens": "many", "completion_tokens": 1}])
def test_m07_usage_that_is_not_there_is_unknown(raw: dict[str, Any] | None) -> None:
    assert read_usage(raw) is None


def test_m02_each_call_is_added_once_and_by_model() -> None:
    ledger = UsageLedger()
    ledger.add("a", CallUsage(10, 1, cost=Decimal("0.1")))
    ledger.add("a", CallUsage(5, 2, 3, 4, cost=Decimal("0.2")))
    ledger.add("b", None)
    first, second = ledger.report()
    assert first.model_dump() == {
        "model": "a", "input_tokens": 15, "output_tokens": 3, "cache_read_tokens": 3, "cache_write_tokens": 4,
        "calls": 2, "cost": Decimal("0.3"),
    }  # fmt: skip
    assert (second.calls, second.input_tokens, second.cost) == (1, 0, None)


def test_a_cost_that_only_some_calls_have_is_no_cost() -> None:
    ledger = UsageLedger()
    ledger.add("a", CallUsage(1, 1, cost=Decimal(1)))
    ledger.add("a", CallUsage(1, 1))
    assert ledger.report()[0].cost is None
