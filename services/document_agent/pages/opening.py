"""Opening a PDF: by its content, with one repair, and with a distinct reason when it cannot be opened."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium_helpers
import pypdfium2.raw as pdfium

from services.document_agent.messages import Header
from shared.contract.errors import RejectedError
from shared.contract.text import clean_text

_LOOK_BYTES = 1_024


@dataclass(slots=True)
class OpenDocument:
    """An open file. `pdf` is pdfium's document."""

    pdf: Any
    header: Header

    def close(self) -> None:
        """Give everything back."""
        self.pdf.close()


def open_document(path: Path, page_limit: int) -> OpenDocument:
    """Open and, where pdfium refuses, repair. Raises RejectedError with the reason that the task will carry."""
    _check_content(path)
    damage: list[str] = []
    try:
        pdf = pdfium_helpers.PdfDocument(path)
        count = len(pdf)
    except pdfium_helpers.PdfiumError as error:
        pdf = _second_try(path, error)
        damage.append("the file's structure was damaged and repaired")
        count = len(pdf)
    if count == 0:
        pdf.close()
        repaired = _repaired(path)
        pdf, count = repaired, 0 if repaired is None else len(repaired)
        damage.append("the file's page tree was damaged and repaired")
    if pdf is None or count == 0:
        raise RejectedError("the document has no pages", reason="no_pages")
    if count > page_limit:
        pdf.close()
        raise RejectedError(f"the document has {count} pages, more than {page_limit}", reason="too_many_pages")
    if not damage and _lacks_end(path):
        damage.append("the file has no end mark: it may be cut")
    is_encrypted = pdfium.FPDF_GetSecurityHandlerRevision(pdf) != -1
    return OpenDocument(pdf, Header(count, _attachments(pdf), is_encrypted, damage))


def _check_content(path: Path) -> None:
    size = path.stat().st_size
    if size == 0:
        raise RejectedError("the file is empty", reason="empty_file")
    with path.open("rb") as file:
        start = file.read(_LOOK_BYTES)
    if b"%PDF-" not in start:
        raise RejectedError("the file is not a PDF", reason="not_a_pdf")


def _second_try(path: Path, error: Any) -> Any:
    repaired = _repaired(path)
    if repaired is None:
        raise RejectedError("the document is damaged beyond repair", reason="document_damaged") from error
    return repaired


def _repaired(path: Path) -> Any | None:
    """The document as qpdf rebuilds it, or None when that gives nothing either.

    qpdf also says whether a password is needed: pdfium keeps the error of the file before.
    """
    import pikepdf

    try:
        with pikepdf.open(path, attempt_recovery=True, suppress_warnings=True) as damaged:
            if len(damaged.pages) == 0:
                raise RejectedError("the document has no pages", reason="no_pages")
            buffer = io.BytesIO()
            damaged.save(buffer)
        return pdfium_helpers.PdfDocument(buffer.getvalue())
    except pikepdf.PasswordError as error:
        raise RejectedError("the document needs a password", reason="password_required") from error
    except pikepdf.PdfError as error:
        if "encrypt" in str(error).lower():
            raise RejectedError(
                f"the document's encryption is not supported: {error}"[:300], reason="password_required"
            ) from error
        return None
    except (pdfium_helpers.PdfiumError, RuntimeError, ValueError):
        return None


def _lacks_end(path: Path) -> bool:
    """Whether the last two kilobytes hold no end mark: pdfium opens a cut file and says nothing."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2_048))
        return b"%%EOF" not in file.read()


def _attachments(pdf: Any) -> list[str]:
    """The names of embedded files: they are ignored, and named so that nobody wonders."""
    names = []
    for index in range(min(pdf.count_attachments(), 100)):
        try:
            names.append(clean_text(pdf.get_attachment(index).get_name())[0][:255])
        except (pdfium_helpers.PdfiumError, ValueError):
            names.append("(a name that cannot be read)")
    return names
