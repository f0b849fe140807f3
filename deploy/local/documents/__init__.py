"""The PDFs of the demo and of tests: made here, the same bytes every time, with what must be found in them.

Invented firms, sums and dates. Each document brings the end that its task should have and, in `expected`,
values that stand in it: a test may ask for them, and nothing else may be found in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.local.documents import business, letters, lists, scans
from deploy.local.documents.paper import Made

MAKERS: dict[str, Callable[[], Made]] = {
    "invoice": business.invoice,
    "invoice-german": business.german_invoice,
    "purchase-order": business.purchase_order,
    "receipt": business.receipt,
    "contract": letters.contract,
    "letter-two-languages": letters.two_languages,
    "letter-ukrainian-greek": letters.ukrainian_and_greek,
    "report-forty-pages": letters.forty_pages,
    "letter-locked": letters.locked,
    "letter-with-attachment": letters.with_attachment,
    "bank-statement": lists.bank_statement,
    "price-list-on-its-side": lists.price_list_on_its_side,
    "letter-scanned": scans.scanned_letter,
    "letter-scanned-sideways": scans.sideways_scan,
    "file-of-text-and-scans": scans.text_and_scans,
    "invoice-cut-short": scans.cut_short,
}


def generate(folder: Path, names: tuple[str, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """Write the documents (all, or those named) into a folder: each file and what should become of it."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names or MAKERS:
        made = MAKERS[name]()
        file = folder / f"{name}.pdf"
        file.write_bytes(made.data)
        written.append((file, made.described()))
    return written
