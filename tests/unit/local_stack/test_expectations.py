from __future__ import annotations

import io
from pathlib import Path

import pikepdf
import pytest
from fpdf import FPDF

from deploy.local.expectations import COMPLETED, DOUBTFUL, LOCKED, REFUSED, Expectation, expectation_of


def pdf(text: str) -> bytes:
    document = FPDF()
    document.add_page()
    document.set_font("helvetica", size=12)
    document.multi_cell(0, text=text)
    return bytes(document.output())


def locked(content: bytes) -> bytes:
    made = io.BytesIO()
    with pikepdf.open(io.BytesIO(content)) as document:
        document.save(made, encryption=pikepdf.Encryption(user="user", owner="owner"))
    return made.getvalue()


READABLE = pdf("An invoice over two hundred and fifty euros for lock repairs.")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (READABLE, COMPLETED),
        (locked(READABLE), LOCKED),
        (pdf("x"), DOUBTFUL),
        (READABLE[:200], DOUBTFUL),
        (b"", REFUSED),
        (b"Dear sir", REFUSED),
    ],
    ids=["readable", "locked", "nearly empty", "cut off", "zero bytes", "no pdf"],
)
def test_a_file_is_judged_by_what_it_holds(tmp_path: Path, content: bytes, expected: Expectation) -> None:
    file = tmp_path / "paper.pdf"
    file.write_bytes(content)
    assert expectation_of(file) == expected


@pytest.mark.parametrize(
    ("expected", "end", "reason", "attempts", "is_right"),
    [
        (COMPLETED, "completed", None, 2, True),
        (COMPLETED, "failed", "password_required", 1, False),
        (LOCKED, "failed", "password_required", 1, True),
        (LOCKED, "failed", "password_required", 3, False),
        (LOCKED, "failed", "no_text", 1, False),
        (DOUBTFUL, "failed", "no_text", 1, True),
        (DOUBTFUL, "failed", "lease_exhausted", 1, False),
        (DOUBTFUL, "failed", None, 1, False),
        (DOUBTFUL, "cancelled", None, 1, False),
        (REFUSED, "refused", "empty_file", 0, True),
        (REFUSED, "refused", None, 0, False),
    ],
)
def test_an_end_is_right_only_with_its_lasting_reason(
    expected: Expectation, end: str, reason: str | None, attempts: int, *, is_right: bool
) -> None:
    assert (expected.violated_by(end, reason, attempts) is None) == is_right
