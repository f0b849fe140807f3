"""The document as the rules see it: one text of the same length, in lines, with quotes taken from the original."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_QUOTE = 300
# Character for character, so that every position in the rewritten text is a position in the original.
_REWRITTEN = str.maketrans(
    {
        **{chr(0x0660 + digit): str(digit) for digit in range(10)},  # Arabic-Indic digits
        **{chr(0x06F0 + digit): str(digit) for digit in range(10)},  # Persian digits
        "\u066b": ".",
        "\u066c": ",",
        "\u202f": "\u00a0",
        "\u2009": "\u00a0",
        "\u2010": "-",
        "\u2011": "-",
        "\u2012": "-",
        "\u2013": "-",
        "\u2014": "-",
        "\u2212": "-",
        "\ufffe": "-",
        "\u2019": "'",
        "\uff1a": ":",
        "\f": "\n",
        "\r": "\n",
        "\v": "\n",
    }
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its margins, and where it stands."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The position after its last character."""
        return self.start + len(self.text)


class Document:
    """The text of a document; pages are separated by form feeds."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.text = original.translate(_REWRITTEN)
        self.lines: Sequence[Line] = [
            Line(found[0].rstrip(), found.start()) for found in re.finditer(r"[^\s\n][^\n]*", self.text)
        ]
        self._starts = [line.start for line in self.lines]

    def index_at(self, position: int) -> int:
        """Number of the line that holds a position."""
        low, high = 0, len(self._starts)
        while low < high:
            middle = (low + high) // 2
            if self._starts[middle] <= position:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    def quote(self, start: int, end: int) -> str:
        """The original words between two positions, shortened at the end when they are many."""
        return self.original[start:end].strip()[:_LONGEST_QUOTE]

    def quote_line(self, index: int, count: int = 1) -> str:
        """The original words of some lines."""
        last = self.lines[min(index + count, len(self.lines)) - 1]
        return self.quote(self.lines[index].start, last.end)


def squeezed(text: str) -> str:
    """The text on one line with single spaces."""
    return " ".join(text.split())
