"""What the child process that reads a PDF tells the agent: a header, then one message per page, then the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Method = Literal["text", "ocr", "mixed", "blank", "unreadable"]


@dataclass(frozen=True, slots=True)
class Line:
    """One recognised line of a scan and how sure the engine was, 0..1."""

    text: str
    score: float


@dataclass(slots=True)
class Table:
    """One table; the first row is the header when `has_header`. Cells are text, empty when nothing stands there."""

    pages: list[int]
    rows: list[list[str]]
    has_header: bool = True


@dataclass(slots=True)
class Page:
    """One page: how it was read and what stands on it.

    `trust` is how far the text layer's characters can be believed (1 for a clean one), `lines` are the
    recognised ones, `turned` the degrees by which a sideways page was turned upright, `notes` what went wrong.
    """

    number: int
    method: Method
    text: str = ""
    trust: float = 1.0
    turned: int = 0
    lines: list[Line] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cleaned: int = 0
    has_pictures: bool = False

    @property
    def ocr_score(self) -> float | None:
        """Mean score of the recognised lines by their length; None when nothing was recognised."""
        weight = sum(len(line.text) for line in self.lines)
        return sum(line.score * len(line.text) for line in self.lines) / weight if weight else None

    def as_message(self) -> dict[str, Any]:
        """The page as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Header:
    """What is known once the file is open."""

    pages: int
    attachments: list[str]
    is_encrypted: bool
    damage: list[str]

    def as_message(self) -> dict[str, Any]:
        """The header as JSON."""
        return asdict(self)


def page_from(message: dict[str, Any]) -> Page:
    """The page in a message."""
    lines = [Line(**each) for each in message["lines"]]
    tables = [Table(**each) for each in message["tables"]]
    return Page(**{**message, "lines": lines, "tables": tables})


def header_from(message: dict[str, Any]) -> Header:
    """The header in a message."""
    return Header(**message)
