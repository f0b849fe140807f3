"""No value is invented: what is not backed by the document is dropped, counted and named."""

from __future__ import annotations

from typing import Any

from services.document_agent.fields.evidence import DocumentIndex
from services.document_agent.fields.judging import Dropped, Judge
from services.document_agent.fields.schema import DEFAULT_SCHEMA
from services.document_agent.messages import Page

PAGE = Page(1, "text", "INVOICE\nMillbrook Trust\nInvoice date: 12 February 2026\nTotal due: 1,205.40")
FIELDS = DEFAULT_SCHEMA["properties"]


def judge() -> Judge:
    return Judge(DocumentIndex([PAGE]), [1], 1, Dropped())


def total(**parts: Any) -> dict[str, Any]:
    return {"label": "Total due", "value": "1205.40", "currency": None, "evidence": "Total due: 1,205.40", **parts}


def test_a_backed_value_is_kept_with_its_quote_and_page() -> None:
    judging = judge()
    value = judging.item("totals", total(), FIELDS["totals"]["items"])
    assert value is not None
    assert value.as_json() == {
        "value": {"label": "Total due", "value": "1205.40", "currency": None},
        "evidence": "Total due: 1,205.40",
        "page": 1,
        "confidence": 1.0,
    }
    assert judging.dropped.count == 0


def test_a_value_without_evidence_is_dropped() -> None:
    judging = judge()
    assert judging.item("totals", total(evidence=None), FIELDS["totals"]["items"]) is None
    assert judging.dropped.kept[0]["reason"] == "no evidence was given"


def test_a_value_whose_evidence_does_not_stand_there_is_dropped() -> None:
    judging = judge()
    assert judging.item("totals", total(evidence="Total due: 9,999.00"), FIELDS["totals"]["items"]) is None
    assert judging.dropped.kept[0]["reason"] == "its evidence does not stand in the document"


def test_a_value_that_contradicts_its_evidence_is_dropped() -> None:
    judging = judge()
    assert judging.item("totals", total(value="1205.41"), FIELDS["totals"]["items"]) is None
    assert judging.dropped.kept[0]["reason"] == "it contradicts its evidence"


def test_a_currency_that_is_named_nowhere_is_left_out_of_its_sum() -> None:
    judging = judge()
    value = judging.item("totals", total(currency="JPY"), FIELDS["totals"]["items"])
    assert value is not None
    assert value.value == {"label": "Total due", "value": "1205.40", "currency": None}
    assert judging.dropped.kept[0]["field"] == "totals.currency"


def test_an_item_with_nothing_but_a_label_is_no_value() -> None:
    judging = judge()
    assert judging.item("totals", total(value=None), FIELDS["totals"]["items"]) is None
    assert judging.dropped.count == 0


def test_a_summary_needs_a_quote_that_stands_there() -> None:
    judging = judge()
    good = judging.single("document_type", "invoice", "INVOICE", FIELDS["document_type"])
    assert good is not None
    assert good.confidence == 0.9
    assert judging.single("summary", "A bill for a spaceship.", "spaceship", FIELDS["summary"]) is None


def test_a_value_from_doubtful_text_has_low_confidence() -> None:
    page = Page(1, "text", PAGE.text, trust=0.3)
    value = Judge(DocumentIndex([page]), [1], 1, Dropped()).item("totals", total(), FIELDS["totals"]["items"])
    assert value is not None
    assert value.confidence == 0.3


def test_only_fifty_dropped_values_are_kept_but_all_are_counted() -> None:
    judging = judge()
    for _ in range(60):
        judging.item("totals", total(evidence=None), FIELDS["totals"]["items"])
    assert (judging.dropped.count, len(judging.dropped.kept)) == (60, 50)
