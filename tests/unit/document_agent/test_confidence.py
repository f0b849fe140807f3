"""The confidence means what its module says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.document_agent.confidence import coverage, document_confidence, field_confidence, value_confidence
from services.document_agent.messages import Line, Page

UNIT = st.floats(0, 1)


def test_a_literal_quote_of_clean_text_with_an_equal_value_is_certain() -> None:
    assert value_confidence(literal=1, source=1, agreement=1, asks=1) == 1


@given(literal=UNIT, source=UNIT, agreement=UNIT, asks=st.integers(1, 2))
def test_a_value_is_never_surer_than_its_weakest_link(
    literal: float, source: float, agreement: float, asks: int
) -> None:
    sure = value_confidence(literal=literal, source=source, agreement=agreement, asks=asks)
    assert 0 <= sure <= min(literal, source, agreement)


def test_an_answer_that_had_to_be_asked_again_counts_less() -> None:
    assert value_confidence(literal=1, source=1, agreement=1, asks=2) == 0.9


def test_a_field_is_the_mean_of_its_values_and_an_empty_one_says_nothing() -> None:
    assert field_confidence([1.0, 0.5]) == 0.75
    assert field_confidence([]) is None


def test_a_document_without_any_value_has_no_confidence() -> None:
    assert document_confidence([None, None], covered=1, kept=0, dropped=0) == 0


def test_dropped_values_speak_against_the_rest() -> None:
    assert document_confidence([1.0], covered=1, kept=3, dropped=1) == 0.75


def test_unread_pages_speak_against_the_document_and_blank_ones_do_not() -> None:
    pages = [
        Page(1, "text", "words"),
        Page(2, "blank"),
        Page(3, "ocr", "", lines=[]),
        Page(4, "unreadable"),
        Page(5, "text", "more words"),
    ]
    assert coverage(pages, []) == 0.5
    assert coverage(pages, [5]) == 0.25
    assert coverage([Page(1, "blank")], []) == 1


def test_a_page_whose_recognition_was_cut_short_counts_half() -> None:
    page = Page(1, "ocr", "words", lines=[Line("words", 0.9)], notes=["recognising page 1 took too long; …"])
    assert coverage([page], []) == 0.5


def test_the_recognition_score_of_a_page_is_weighted_by_length() -> None:
    page = Page(1, "ocr", "ab\nabcdef", lines=[Line("ab", 0.5), Line("abcdef", 1.0)])
    assert page.ocr_score == pytest.approx(0.875)
