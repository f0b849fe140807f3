"""Tables with ruled lines, by pdfplumber, only on pages where one is likely, and within a time limit.

Likely means: ruling lines (thin or box-shaped paths) at three or more heights and at two or more places
across. pdfplumber is slow on dense pages, so prose never pays for it, and an unruled table is left to the text
room, which keeps its rows together. Each page is handed over as a document of its own, turned
upright: memory stays that of one page, and a page that lies on its side gives the same rows.

Two repairs of what rules alone give: a ruled block that holds several printed lines in each of its cells
becomes that many rows, and a table that goes on at the top of the next page with as many columns goes on in
the same table (a repeated header is dropped).
"""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pypdfium2 as pdfium_helpers
import pypdfium2.raw as pdfium

from services.document_agent.messages import Table
from shared.contract.text import clean_text

_READING = {"x_tolerance_ratio": 0.25}
_MOST_PATHS = 4_000
_THIN = 3.0
_LONGEST_CELL = 120


class TableTimeout(Exception):  # noqa: N818 - the expected end of a slow page, not a fault
    """The page's tables took longer than they may."""


def is_likely(boxes: Sequence[tuple[float, float, float, float]]) -> bool:
    """Whether these path boxes (left, bottom, right, top) look like the rules of a table."""
    heights: set[int] = set()
    places: set[int] = set()
    for left, bottom, right, top in boxes[:_MOST_PATHS]:
        width, height = right - left, top - bottom
        if width < 2 and height < 2:
            continue
        is_box = width > 8 and height > 6
        if is_box or height <= _THIN:
            heights.update((round(bottom / 3), round(top / 3)))
        if is_box or width <= _THIN or height <= _THIN:
            places.update((round(left / 3), round(right / 3)))
    return len(heights) >= 4 and len(places) >= 3


def read_tables(document: Any, index: int, *, rotation: int, seconds: float) -> list[Table]:
    """The ruled tables of one page (0-based), shown at this rotation. Raises TableTimeout."""
    import pdfplumber

    copy = pdfium_helpers.PdfDocument.new()
    try:
        copy.import_pages(document, [index])
        page = copy[0]
        pdfium.FPDFPage_SetRotation(page, rotation // 90)
        buffer = io.BytesIO()
        copy.save(buffer)
        textpage = page.get_textpage() if rotation == 0 and tuple(page.get_mediabox()[:2]) == (0, 0) else None
        with _limited(seconds), pdfplumber.open(io.BytesIO(buffer.getvalue())) as pdf:
            found = [_cells(table, textpage, page.get_height()) for table in pdf.pages[0].find_tables()]
    finally:
        copy.close()
    tables = [_table(rows, index + 1) for rows in found]
    return [table for table in tables if _is_table(table)]


def _cells(table: Any, textpage: Any, height: float) -> list[list[str]]:
    """The text of every cell: pdfplumber knows where cells are, pdfium reads letters that stand far apart better."""
    if textpage is None:
        return [[cell or "" for cell in row] for row in table.extract(**_READING)]
    return [[_cell(textpage, box, height) for box in row.cells] for row in table.rows]


def _cell(textpage: Any, box: tuple[float, float, float, float] | None, height: float) -> str:
    if box is None:
        return ""
    left, top, right, bottom = box
    text: str = textpage.get_text_bounded(left, height - bottom, right, height - top, errors="surrogatepass")
    return text.replace("\ufffe", "-")


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt what is pure Python after the time; only in the main thread of a process of its own."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise TableTimeout

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, max(0.05, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _table(rows: Sequence[Sequence[str]], page: int) -> Table:
    split: list[list[str]] = []
    for row in rows:
        cells = [_lines(cell) for cell in row]
        split += _split_row(cells)
    return Table([page], [row for row in split if any(row)])


def _lines(cell: str) -> list[str]:
    text, _ = clean_text(cell)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _split_row(cells: list[list[str]]) -> list[list[str]]:
    """Several printed lines in a ruled row: as many rows, when nearly all of its filled cells agree on how many."""
    filled = [cell for cell in cells if cell]
    depth = max((len(cell) for cell in filled), default=0)
    agreeing = sum(len(cell) == depth for cell in filled)
    if depth < 2 or len(filled) < 3 or agreeing < len(filled) * 0.6:
        return [[" ".join(cell) for cell in cells]]
    exact = [cell if len(cell) == depth else [" ".join(cell)] + [""] * (depth - 1) for cell in cells]
    return [[cell[line] for cell in exact] for line in range(depth)]


def _is_table(table: Table) -> bool:
    """At least two rows and two columns that hold something, and cells, not the frames of a whole layout."""
    filled = [len(cell) for row in table.rows for cell in row if cell]
    columns = sum(any(column) for column in zip(*table.rows, strict=False))
    return len(table.rows) >= 2 and columns >= 2 and sum(filled) / len(filled) <= _LONGEST_CELL


def joined(tables: Sequence[Table]) -> list[Table]:
    """The document's tables, those that go over a page break put together. Each keeps the pages it stands on."""
    result: list[Table] = []
    for table in tables:
        before = result[-1] if result else None
        if before is not None and _goes_on(before, table):
            rows = table.rows[1:] if table.rows[0] == before.rows[0] else table.rows
            before.rows.extend(rows)
            before.pages.extend(page for page in table.pages if page not in before.pages)
        else:
            result.append(Table(list(table.pages), [list(row) for row in table.rows], _has_header(table)))
    return result


def _goes_on(before: Table, table: Table) -> bool:
    return (
        len(before.rows[0]) == len(table.rows[0])
        and len(before.rows[0]) >= 2
        and table.pages[0] == before.pages[-1] + 1
    )


def _has_header(table: Table) -> bool:
    """A first row of words over rows with figures."""
    head = table.rows[0]
    below = [cell for row in table.rows[1:] for cell in row]
    return not any(_has_digit(cell) for cell in head if cell) and any(map(_has_digit, below))


def _has_digit(cell: str) -> bool:
    return any(each.isdigit() for each in cell)
