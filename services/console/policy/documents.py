"""What a file that somebody uploads is, by its content, and what it may be called."""

from __future__ import annotations

import re
import unicodedata
from uuid import UUID

from shared.contract.text import clean_text

SNIFFED_BYTES = 1024
"""A PDF says that it is one within its first kilobyte; readers tolerate rubbish before it."""

_HEADER = b"%PDF-"
# Characters that reorder what stands around them: a name could show another ending than it has.
_REORDERING = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LONGEST_NAME = 500
_NAMELESS = "unnamed.pdf"

MESSAGES = {
    "empty_file": "The file is empty.",
    "not_a_pdf": "The file is not a PDF.",
    "too_large": "The file is larger than {limit}.",
    "too_many_files": "Only {limit} files fit into one upload.",
    "storage_full": "There is no space left to store it. Nothing was kept of it; try again later.",
    "storage_unavailable": "The Volume cannot be reached now. Nothing was kept of it; try again later.",
    "interrupted": "The file ended before it was complete.",
}


def refusal_of(head: bytes, size: int) -> str | None:
    """Why these bytes are not taken as a document; None when they are.

    Locked and damaged PDFs are taken: the agent reads them and says what is wrong.
    """
    if size == 0:
        return "empty_file"
    return None if _HEADER in head[:SNIFFED_BYTES] else "not_a_pdf"


def display_name(given: str) -> str:
    """The user's name for a file as data: everything readable is kept, `../` and emoji included."""
    cleaned, _ = clean_text(given)
    visible = "".join(
        " " if unicodedata.category(each) in {"Cc", "Zl", "Zp"} else each for each in _REORDERING.sub("", cleaned)
    ).strip()
    return visible[:_LONGEST_NAME] or _NAMELESS


def volume_path(volume: str, document: UUID) -> str:
    """Where a document lies. Our own key, never the user's name."""
    return f"{volume}/{document}.pdf"


def message_of(reason: str, **values: object) -> str:
    """A refusal in words."""
    return MESSAGES[reason].format(**values)


def readable_bytes(size: int) -> str:
    """A size for people."""
    return f"{size / 2**20:g} MB" if size >= 2**20 else f"{size / 2**10:g} kB"
