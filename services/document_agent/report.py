"""The stored result of a document: small enough for a row, complete enough to be checked by a person.

`fields` hold only values that stand in the document, each with its quote, page and confidence. `pages` say
how each was read and how well. `text` and `tables` are cut at the settings' limits, and say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.document_agent.confidence import coverage, document_confidence, field_confidence
from services.document_agent.fields.extract import Extraction
from services.document_agent.fields.judging import Value
from services.document_agent.messages import Header, Page, Table
from services.document_agent.settings import DocumentAgentSettings
from services.document_agent.tables import joined

_MOST_DAMAGE = 100


@dataclass(slots=True)
class Reading:
    """What was read of a document, page by page."""

    header: Header
    pages: list[Page] = field(default_factory=list)

    @property
    def damage(self) -> list[str]:
        """What is wrong with the file and its pages, for people."""
        notes = [note for page in self.pages for note in page.notes]
        damage = [*self.header.damage, *notes]
        if len(damage) <= _MOST_DAMAGE:
            return damage
        return [*damage[: _MOST_DAMAGE - 1], f"and {len(damage) - _MOST_DAMAGE + 1} more"]

    @property
    def cleaned(self) -> int:
        """Characters that were dropped because nothing can store them."""
        return sum(page.cleaned for page in self.pages)

    @property
    def has_text(self) -> bool:
        """Whether anything can be read on any page."""
        return any(page.text.strip() for page in self.pages)


def confidences(reading: Reading, extraction: Extraction) -> dict[str, float]:
    """The confidence of the document and what it is made of."""
    fields = [field_confidence([each.confidence for each in _values(one)]) for one in extraction.fields.values()]
    covered = coverage(reading.pages, extraction.unread_pages)
    kept, dropped = extraction.kept_count, extraction.dropped.count
    document = document_confidence(fields, covered=covered, kept=kept, dropped=dropped)
    known = [each for each in fields if each is not None]
    return {
        "document": round(document, 4),
        "fields": round(sum(known) / len(known), 4) if known else 0.0,
        "believed": round(kept / (kept + dropped), 4) if kept + dropped else 0.0,
        "coverage": round(covered, 4),
    }


def build_result(
    reading: Reading, extraction: Extraction, confidence: dict[str, float], settings: DocumentAgentSettings
) -> dict[str, Any]:
    """The JSON object that is stored for the attempt."""
    text, is_cut = _text(reading.pages, settings.text_characters)
    tables, rows_left_out = _tables(reading.pages, settings.table_rows)
    return {
        "fields": {name: _field(one) for name, one in extraction.fields.items()},
        "confidence": confidence,
        "dropped_values": extraction.dropped.kept,
        "dropped_value_count": extraction.dropped.count,
        "document": {
            "pages": reading.header.pages,
            "is_empty": not reading.has_text,
            "is_encrypted": reading.header.is_encrypted,
            "attachments_ignored": reading.header.attachments,
            "damage": reading.damage,
            "pages_not_given_to_the_model": extraction.unread_pages,
        },
        "pages": [_page(page) for page in reading.pages],
        "tables": tables,
        "table_rows_left_out": rows_left_out,
        "text": text,
        "text_is_cut": is_cut,
    }


def _values(one: Value | list[Value] | None) -> list[Value]:
    if one is None:
        return []
    return one if isinstance(one, list) else [one]


def _field(one: Value | list[Value] | None) -> dict[str, Any] | list[dict[str, Any]] | None:
    if one is None:
        return None
    return [each.as_json() for each in one] if isinstance(one, list) else one.as_json()


def _page(page: Page) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "page": page.number,
        "method": page.method,
        "characters": len(page.text),
        "confidence": round(page_confidence(page), 3),
        "seconds": page.seconds,
    }
    extra = {"turned": page.turned, "notes": page.notes, "tables": len(page.tables)}
    return shown | {name: value for name, value in extra.items() if value}


def page_confidence(page: Page) -> float:
    """How far the characters of a page can be believed: its layer's trust, its recognition score, 1 for a blank one."""
    if page.method == "blank":
        return 1.0
    if page.method == "unreadable" or not page.text.strip():
        return 0.0
    score = page.ocr_score
    return page.trust if score is None else (score if page.method == "ocr" else min(page.trust, score))


def _text(pages: Sequence[Page], limit: int) -> tuple[str, bool]:
    """The pages' text, a form feed between two pages, and whether it was cut."""
    size, kept = 0, []
    for page in pages:
        if size + len(page.text) > limit:
            kept.append(page.text[: max(0, limit - size)])
            return "\f".join(kept), True
        kept.append(page.text)
        size += len(page.text)
    return "\f".join(kept), False


def _tables(pages: Sequence[Page], limit: int) -> tuple[list[dict[str, Any]], int]:
    left, left_out, shown = limit, 0, []
    for table in joined([table for page in pages for table in page.tables]):
        rows = table.rows[:left]
        left -= len(rows)
        left_out += len(table.rows) - len(rows)
        if rows:
            shown.append(_table(table, rows))
    return shown, left_out


def _table(table: Table, rows: list[list[str]]) -> dict[str, Any]:
    body = rows[1:] if table.has_header else rows
    return {
        "pages": table.pages,
        "columns": rows[0] if table.has_header else None,
        "rows": body,
        "row_count": len(table.rows) - int(table.has_header),
    }
