"""How a page is read is decided for each page, and stored with it."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pikepdf
import pytest

from deploy.local.documents.scans import picture
from services.document_agent.messages import Page
from services.document_agent.ocr import Recogniser
from services.document_agent.pages.opening import open_document
from services.document_agent.pages.reading import PageReader
from services.document_agent.settings import DocumentAgentSettings
from shared.testing import pdfs

pytestmark = pytest.mark.timeout(180)
LINES = ("Delivery note 5512", "Received on 3 February 2026", "Goods: two wall clocks")
JUNK = "qvx zzkw 8#k ~~ lorp\nwwq trfl xbn kkzt\nmmpf drgl"


@pytest.fixture(scope="module")
def reader() -> PageReader:
    return PageReader(DocumentAgentSettings().reading_limits(), Recogniser(2))


def scan(layer: str | None = None, turned: int = 0) -> bytes:
    """A picture of LINES, turned counter-clockwise."""
    image = picture(LINES, size=40).crop((0, 0, 1240, 700)).rotate(turned, expand=True, fillcolor=246)
    width, height = image.size
    return pdfs.image_pdf(width, height, image.tobytes(), layer=layer, box=f"0 0 {width // 2} {height // 2}")


def joined(*files: bytes) -> bytes:
    out = BytesIO()
    with pikepdf.new() as whole:
        for each in files:
            whole.pages.extend(pikepdf.open(BytesIO(each)).pages)
        whole.save(out)
    return out.getvalue()


def read(reader: PageReader, data: bytes, tmp_path_factory: pytest.TempPathFactory) -> list[Page]:
    file = tmp_path_factory.mktemp("pages") / "one.pdf"
    file.write_bytes(data)
    document = open_document(file, 100)
    try:
        return [reader.read(document.pdf, index) for index in range(document.header.pages)]
    finally:
        document.close()


def test_p05_each_page_of_a_mixed_file_has_its_own_method(
    reader: PageReader, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = [pdfs.text_pdf([f"Page {number} of plain text, long enough to be one."]) for number in range(4)]
    scans = [scan() for _ in range(2)]
    data = joined(*text, *scans, pdfs.blank_pages(), scan(JUNK), scan("\n".join(LINES)), pdfs.vector_drawing())
    pages = read(reader, data, tmp_path_factory)
    methods = [page.method for page in pages]
    assert methods == ["text"] * 4 + ["ocr"] * 2 + ["blank", "ocr", "text", "ocr"]
    assert all("Received on 3 February 2026" in pages[number].text for number in (4, 5, 7, 8))
    assert "qvx" not in pages[7].text
    assert "not what it shows" in pages[7].notes[0]
    assert pages[9].text == ""


@pytest.mark.parametrize("turned", [0, 90, 180, 270])
def test_a_scan_that_lies_on_any_side_is_turned_upright(
    reader: PageReader, tmp_path_factory: pytest.TempPathFactory, turned: int
) -> None:
    (page,) = read(reader, scan(turned=turned), tmp_path_factory)
    assert "Received on 3 February 2026" in page.text
    assert page.turned == turned


def test_letters_beyond_ascii_are_recognised(reader: PageReader, tmp_path_factory: pytest.TempPathFactory) -> None:
    image = picture(("Größe der Fässer: 225 Liter", "Küferstraße 12, Esslingen"), size=40).crop((0, 0, 1240, 600))
    (page,) = read(reader, pdfs.image_pdf(*image.size, image.tobytes(), box="0 0 620 300"), tmp_path_factory)
    assert "Küferstraße 12, Esslingen" in page.text


def test_a_recognition_that_takes_too_long_keeps_what_it_has(tmp_path_factory: pytest.TempPathFactory) -> None:
    limits = DocumentAgentSettings(ocr_page_seconds=0.01).reading_limits()
    (page,) = read(PageReader(limits, Recogniser(2)), scan(), tmp_path_factory)
    assert "took too long" in page.notes[0]


def test_p07_a_scan_of_nothing_is_empty(reader: PageReader, tmp_path_factory: pytest.TempPathFactory) -> None:
    grain = np.random.default_rng(3).normal(240, 4, (800, 600)).clip(0, 255).astype(np.uint8)
    (page,) = read(reader, pdfs.image_pdf(600, 800, grain.tobytes()), tmp_path_factory)
    assert page.text == ""
    (tiny,) = read(reader, pdfs.image_pdf(1, 1, b"\x80", box="0 0 4 4"), tmp_path_factory)
    assert tiny.text == ""
