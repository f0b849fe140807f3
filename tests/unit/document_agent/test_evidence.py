"""A value is believed only when its quote stands in the document and says the same."""

from __future__ import annotations

from decimal import Decimal

import pytest

from services.document_agent.fields.evidence import FUZZY_FOUND, DocumentIndex, agreement, folded, numbers_in
from services.document_agent.messages import Line, Page

PAGES = [
    Page(1, "text", "Invoice\nTotal due:  1.234,50 €\nThe govern-\nment pays “at once”."),
    Page(2, "ocr", "Lakeside Clockrnakers\nDate: 22 January 2026", lines=[Line("Lakeside Clockrnakers", 0.8), Line("Date: 22 January 2026", 0.99)]),
]  # fmt: skip
INDEX = DocumentIndex(PAGES)


@pytest.mark.parametrize(
    "quote",
    ["Total due: 1.234,50 €", "total DUE:\n1.234,50 €", "The government pays", 'pays "at once"', "Totaldue:1.234,50€"],
)
def test_case_blanks_breaks_hyphens_and_quotation_marks_do_not_matter(quote: str) -> None:
    found = INDEX.find(quote)
    assert found is not None
    assert (found.page, found.literal, found.source) == (1, 1.0, 1.0)


@pytest.mark.parametrize("quote", ["Total due: 9.999,00 €", "", None, "   ", "…"])
def test_what_does_not_stand_there_is_not_found(quote: str | None) -> None:
    assert INDEX.find(quote) is None


def test_a_recognised_line_may_be_nearly_the_same_and_carries_its_score() -> None:
    found = INDEX.find("Lakeside Clockmakers")
    assert found is not None
    assert (found.page, found.literal) == (2, FUZZY_FOUND)
    exact = INDEX.find("Date: 22 January 2026")
    assert exact is not None
    assert exact.source == 0.99


def test_a_nearly_equal_line_of_a_text_layer_is_not_found() -> None:
    assert DocumentIndex([Page(1, "text", "Lakeside Clockrnakers")]).find("Lakeside Clockmakers") is None


def test_a_quote_may_go_over_a_page_break() -> None:
    index = DocumentIndex([Page(1, "text", "The tenant pays the"), Page(2, "text", "rent of 900 euros monthly")])
    assert index.find("pays the rent of 900 euros") is not None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.234,50 €", "1234.50"), ("1,234.50", "1234.50"), ("$76,000", "76000"), ("-12.5", "-12.5"), ("(3,50)", "-3.50"),
        ("1 234 567", "1234567"), ("12'500.00", "12500.00"), ("١٢٣٫٥", "123.5"), ("page 7 of 9", "9"),
    ],
)  # fmt: skip
def test_numbers_are_read_in_every_convention(text: str, number: str) -> None:
    assert Decimal(number) in numbers_in(text)


@pytest.mark.parametrize(
    ("kind", "value", "quote", "degree"),
    [
        ("amount", "1234.50", "Total due: 1.234,50 €", 1.0),
        ("amount", "1234.51", "Total due: 1.234,50 €", 0.0),
        ("amount", "3000000", "EUR 3 million", 0.8),
        ("date", "2026-02-12", "12 February 2026", 1.0),
        ("date", "2026-02-12", "12.02.26", 1.0),
        ("date", "2026-02-13", "12 February 2026", 0.0),
        ("date", "2026-01-22", "due on 22 January", 0.6),
        ("date", "1999-01-22", "due on 22 January", 0.0),
        ("currency", "EUR", "1.234,50 €", 1.0),
        ("currency", "EUR", "1.234,50", 0.8),
        ("currency", "JPY", "1.234,50", 0.0),
        ("text", "Millbrook Trust", "Bill to: MILLBROOK trust", 1.0),
        ("text", "Somebody Else Ltd", "Bill to: Millbrook Trust", 0.0),
        ("number", 665, "Score: 665", 1.0),
        ("derived", "invoice", "Invoice", 0.9),
    ],
)
def test_a_value_agrees_with_its_quote_or_contradicts_it(kind: str, value: object, quote: str, degree: float) -> None:
    assert agreement(kind, value, quote, INDEX) == degree


def test_ligatures_fold_to_their_letters() -> None:
    assert folded("ﬁnal oﬃce") == "final office"
