"""How sure we are, and why: pure functions, and the one place that defines what the numbers mean.

A **value's** confidence is the product of four factors, each 0..1, so that one bad link is enough:

- literal: its evidence was found in the document, word for word 1, nearly (recognised text) 0.9. What is
  not found has no confidence at all, because it is not stored.
- source: how far the characters of the evidence can be believed: the mean recognition score of the lines
  that carry it, or the text layer's trust (1 for a clean layer, below 0.5 for one whose font says
  nothing certain).
- agreement: how well the value agrees with its evidence: 1 when the number, the date or the words are the
  same, 0.9 for a value that sums up (a type, a summary), 0.6 when the year had to be taken from elsewhere,
  0 for a contradiction, which again is not stored.
- form: 1 when the model's first answer fitted the schema, 0.9 when it had to be asked again.

A **field's** confidence is the mean of its values. The **document's** is the mean of its fields that have any,
times the share of its values that were believed (dropped ones speak against the rest), times its coverage: the
share of its pages with something on them that were read whole. A document of which nothing was read has 0,
and so has one in which no field was found. A blank page costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.document_agent.messages import Page

ASKED_AGAIN = 0.9
_CUT_SHORT = "too long"


def value_confidence(*, literal: float, source: float, agreement: float, asks: int) -> float:
    """The confidence of one value; see the top of this module."""
    form = 1.0 if asks <= 1 else ASKED_AGAIN
    return _unit(literal) * _unit(source) * _unit(agreement) * form


def field_confidence(values: Sequence[float]) -> float | None:
    """The confidence of a field with these values; None for an empty one."""
    return sum(values) / len(values) if values else None


def coverage(pages: Sequence[Page], unread: Sequence[int]) -> float:
    """The share of the pages with something on them that was read and given to the model."""
    filled = [page for page in pages if page.method != "blank"]
    if not filled:
        return 1.0
    missing = set(unread)
    return sum(_page_coverage(page) for page in filled if page.number not in missing) / len(filled)


def _page_coverage(page: Page) -> float:
    """1 for a page read whole, 0.5 for one whose recognition was cut short, 0 for one that gave nothing."""
    if page.method == "unreadable" or not page.text.strip():
        return 0.0
    return 0.5 if any(_CUT_SHORT in note for note in page.notes) else 1.0


def document_confidence(fields: Sequence[float | None], *, covered: float, kept: int, dropped: int) -> float:
    """The confidence of a document with these field confidences; 0 when nothing was found."""
    known = [each for each in fields if each is not None]
    if not known or kept == 0:
        return 0.0
    believed = kept / (kept + dropped)
    return _unit(sum(known) / len(known) * believed * covered)


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))
