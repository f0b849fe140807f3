from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.errors import RejectedError
from shared.contract.task_filter import TaskFilter


def test_a_filter_reads_its_words_and_leaves_others_aside() -> None:
    chosen = TaskFilter.parse(
        [("status", "failed,cancelled"), ("status", "failed"), ("agent", "a, b"), ("customer", "x, y"), ("text", " t "),
         ("label", "k=v=w"), ("label", "n"), ("cursor", "c"), ("limit", "5"), ("agent", "")]
    )  # fmt: skip
    assert chosen.statuses == ("failed", "cancelled")
    assert (chosen.agents, chosen.customers, chosen.text) == (("a", "b"), ("x, y",), "t")
    assert chosen.labels == (("k", "v=w"), ("n", None))
    assert TaskFilter.parse([("limit", "5")]).is_empty


@pytest.mark.parametrize(
    "pair",
    [
        ("status", "done"), ("from", "yesterday"), ("from", "2026-01-01"), ("from", "2026-01-01T00:00:00"),
        ("to", "0001-01-01T00:00:00+14:00"), ("to", "9999-12-31T23:59:59-12:00"), ("text", "x" * 201), ("from", "\ud800"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_by_name(pair: tuple[str, str]) -> None:
    if pair == ("from", "\ud800"):
        assert TaskFilter.parse([pair]).is_empty
        return
    with pytest.raises(RejectedError, match=f"^{pair[0]}"):
        TaskFilter.parse([pair])


def test_a_range_must_go_forward() -> None:
    with pytest.raises(RejectedError, match="later"):
        TaskFilter.parse([("from", "2026-01-02T00:00:00Z"), ("to", "2026-01-01T00:00:00Z")])


@given(
    st.lists(st.tuples(st.sampled_from(["status", "agent", "from", "to", "text", "label", "x"]), st.text(max_size=30)))
)
def test_no_query_breaks_the_reader(pairs: list[tuple[str, str]]) -> None:
    try:
        chosen = TaskFilter.parse(pairs)
    except RejectedError:
        return
    row = {"agent": "a", "customer": None, "created_at": datetime(2026, 1, 1, tzinfo=UTC), "document_name": None,
           "id": "1", "labels": {}}  # fmt: skip
    assert chosen.matches(row) in {True, False}
    assert len(chosen.arguments()) == 8
