"""Cutting a long document into what one model call can read: whole pages while they fit, else whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAGE_BREAK = "\f"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the document: its text with pages kept apart by form feeds, and the pages it is from."""

    text: str
    pages: tuple[int, ...]


def chunks_of(pages: Sequence[tuple[int, str]], budget: int) -> list[Chunk]:
    """The pages (number, text) in order, in parts of at most `budget` characters; empty pages are left out."""
    chunks: list[Chunk] = []
    texts: list[str] = []
    numbers: list[int] = []
    size = 0

    def flush() -> None:
        nonlocal texts, numbers, size
        if texts:
            chunks.append(Chunk(PAGE_BREAK.join(texts), tuple(numbers)))
        texts, numbers, size = [], [], 0

    for number, text in pages:
        for piece in _pieces(text, budget):
            if size + len(piece) + 1 > budget:
                flush()
            texts.append(piece)
            numbers.append(number)
            size += len(piece) + 1
    flush()
    return chunks


def halves_of(chunk: Chunk) -> list[Chunk]:
    """Two parts of a chunk whose answer was cut off; itself when it is too short to halve."""
    if len(chunk.text) < 400:
        return [chunk]
    middle = len(chunk.text) // 2
    cut = max(chunk.text.rfind(PAGE_BREAK, 0, middle), chunk.text.rfind("\n", 0, middle))
    cut = middle if cut <= 0 else cut
    before = chunk.text[:cut].count(PAGE_BREAK)
    return [
        Chunk(chunk.text[:cut], chunk.pages[: before + 1]),
        Chunk(chunk.text[cut:].lstrip(f"{PAGE_BREAK}\n"), chunk.pages[before:]),
    ]


def selected(chunks: Sequence[Chunk], most: int) -> tuple[list[Chunk], list[int]]:
    """The chunks that are read when there are more than may be, and the pages left out.

    The beginning and the end say most about a document: two thirds from the front, the rest from the back.
    """
    if len(chunks) <= most:
        return list(chunks), []
    front = most - most // 3
    kept = [*chunks[:front], *chunks[len(chunks) - (most - front) :]]
    read = {page for chunk in kept for page in chunk.pages}
    left_out = {page for chunk in chunks for page in chunk.pages} - read
    return kept, sorted(left_out)


def _pieces(text: str, budget: int) -> list[str]:
    if not text.strip():
        return []
    if len(text) < budget:
        return [text]
    pieces, current = [], ""
    for line in text.split("\n"):
        for start in range(0, max(1, len(line)), budget - 1):
            part = line[start : start + budget - 1]
            if current and len(current) + len(part) + 1 >= budget:
                pieces.append(current)
                current = part
            else:
                current = f"{current}\n{part}" if current else part
    return [*pieces, current] if current.strip() else pieces
