"""Sheets to write on: the fonts, a fixed date so that bytes do not change, and what a finished document is."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fpdf import FPDF

_MADE_AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
FONT = "DejaVu"


@dataclass(frozen=True, slots=True)
class Made:
    """A document, the end its task should have, and values that stand in it by field."""

    data: bytes
    pages: int
    expected: dict[str, Any] = field(default_factory=dict)
    end: str = "completed"
    reason: str = ""

    def described(self) -> dict[str, Any]:
        """Everything but the bytes."""
        return {"end": self.end, "reason": self.reason, "pages": self.pages, "expected": self.expected}


def font_folder() -> Path:
    """Where the DejaVu fonts are: matplotlib, which mlflow brings along, ships them."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("matplotlib, whose fonts the demo's documents use, is not installed")
    return Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"


class Paper(FPDF):  # type: ignore[misc]  # fpdf ships no type information
    """A document in the making. Sizes are points, A4 unless said otherwise."""

    def __init__(self, size: str | tuple[float, float] = "A4", *, landscape: bool = False) -> None:
        super().__init__(orientation="landscape" if landscape else "portrait", unit="pt", format=size)
        self.set_creation_date(_MADE_AT)
        self.set_producer("lockkeeper demo")
        self.set_margins(56, 56, 56)
        self.set_auto_page_break(auto=True, margin=56)
        self.add_font(FONT, "", str(font_folder() / "DejaVuSans.ttf"))
        self.add_font(FONT, "B", str(font_folder() / "DejaVuSans-Bold.ttf"))
        self.add_page()
        self.plain()

    def plain(self, size: float = 10) -> None:
        """Ordinary letters from here on."""
        self.set_font(FONT, "", size)

    def heading(self, text: str, size: float = 16) -> None:
        """A line that stands out."""
        self.set_font(FONT, "B", size)
        self.multi_cell(0, size * 1.5, text, new_x="LMARGIN", new_y="NEXT")
        self.plain()

    def lines(self, *texts: str, gap: float = 8) -> None:
        """Lines under each other, and a gap after the last; long ones are broken."""
        for text in texts:
            self.multi_cell(0, 14, text, new_x="LMARGIN", new_y="NEXT")
        self.ln(gap)

    def grid(self, rows: Sequence[Sequence[str]], widths: Sequence[float], *, size: float = 9) -> None:
        """A ruled table that repeats its first row on every page; what looks like a number stands to the right."""
        height = size * 1.8
        for number, row in enumerate(rows):
            if self.get_y() + height > self.page_break_trigger:
                self.add_page()
                self._row(rows[0], widths, height, "B", size)
            self._row(row, widths, height, "B" if number == 0 else "", size)
        self.plain()
        self.ln(8)

    def _row(self, row: Sequence[str], widths: Sequence[float], height: float, style: str, size: float) -> None:
        self.set_font(FONT, style, size)
        for text, width in zip(row, widths, strict=True):
            align = "R" if text[:1].isdigit() or text[:1] in "-€" else "L"
            self.cell(width, height, text, border=1, align=align)
        self.ln(height)

    def made(self, *, end: str = "completed", reason: str = "", **expected: Any) -> Made:
        """The finished document."""
        pages = self.pages_count
        return Made(bytes(self.output()), pages, expected, end, reason)
