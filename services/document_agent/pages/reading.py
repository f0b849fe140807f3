"""Reading one page: what is on it decides how, page by page, and the choice is stored with the page.

The rule, in this order:
`text` — the layer can be believed (text.TRUSTED) and no sizeable picture is left without text over it;
`mixed` — the same, but pictures of a twentieth of the page or more have no text over them: they are recognised
too, and so is the whole page when the layer holds hardly anything (fewer than 20 characters);
`ocr` — no layer, or one that cannot be believed; also a scan whose layer does not say what a few lines of
the picture say (a layer of junk under a scan). When recognition finds less than the doubtful layer has,
the layer is kept with its low trust, for the reader to judge;
`blank` — no layer and nothing drawn;
`unreadable` — the page itself is broken.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pypdfium2 as pdfium_helpers
import pypdfium2.raw as pdfium

from services.document_agent import tables as table_room
from services.document_agent.messages import Line, Page
from services.document_agent.ocr import DOTS_PER_INCH, Image, Recogniser, Recognition
from services.document_agent.settings import ReadingLimits
from services.document_agent.text import TRUSTED, Layer, read_layer

Box = tuple[float, float, float, float]
_PICTURE_SHARE = 0.05
_SCAN_SHARE = 0.7
_HARDLY_ANYTHING = 20
_MOST_OBJECTS = 6_000
_LONGEST_PIXELS = 2_400
_INK_SHARE = 0.0002


@dataclass(slots=True)
class _Content:
    """What is drawn on a page, from its objects. Boxes are left, bottom, right, top in points."""

    pictures: list[Box] = field(default_factory=list)
    paths: list[Box] = field(default_factory=list)
    objects: int = 0


class PageReader:
    """Reads pages one after the other; the engine and the time left for tables live as long as the document."""

    def __init__(self, limits: ReadingLimits, recogniser: Recogniser) -> None:
        self._limits = limits
        self._recogniser = recogniser
        self._table_seconds = limits.table_seconds

    def read(self, pdf: Any, index: int) -> Page:
        """The page with this 0-based index; never raises for what is on it."""
        started = time.monotonic()
        number = index + 1
        try:
            page = pdf[index]
        except pdfium_helpers.PdfiumError:
            return Page(number, "unreadable", notes=[f"page {number} is broken and was left out"])
        try:
            result = self._read(pdf, page, index)
        except pdfium_helpers.PdfiumError as error:
            result = Page(number, "unreadable", notes=[f"page {number} cannot be read: {error}"])
        finally:
            page.close()
        result.seconds = round(time.monotonic() - started, 3)
        return result

    def _read(self, pdf: Any, page: Any, index: int) -> Page:
        width, height = page.get_size()
        if width < 1 or height < 1:
            return Page(index + 1, "blank", notes=[f"page {index + 1} has no area"])
        content = _content(page)
        likely = table_room.is_likely(content.paths)
        textpage = page.get_textpage()
        try:
            layer = read_layer(textpage)
            sizeable = [box for box in content.pictures if _share(box, page) >= _PICTURE_SHARE]
            bare = [box for box in sizeable if not _has_text(textpage, box)]
        finally:
            textpage.close()
        result = self._chosen(page, index, layer, content, bare)
        if likely and result.method in ("text", "mixed"):
            self._add_tables(pdf, index, layer, result)
        return result

    def _chosen(self, page: Any, index: int, layer: Layer, content: _Content, bare: list[Box]) -> Page:
        result = Page(index + 1, "text", layer.text, layer.trust, cleaned=layer.cleaned)
        result.turned = (-page.get_rotation() - layer.angle) % 360 if layer.visible else 0
        result.has_pictures = bool(content.pictures)
        if layer.visible == 0 or layer.trust < TRUSTED:
            return self._recognised(page, layer, content, result)
        if bare:
            return self._mixed(page, layer, bare, result)
        if any(_share(box, page) >= _SCAN_SHARE for box in content.pictures):
            return self._checked_scan(page, layer, result)
        return result

    def _recognised(self, page: Any, layer: Layer, content: _Content, result: Page) -> Page:
        if content.objects == 0 or not _has_ink(page):
            if layer.visible == 0:
                result.method = "blank"
                return result
            return _doubtful(result)
        found = self._ocr(_rendered(page), result)
        if found is None or (layer.visible and _visible(found.text) < layer.visible * 0.3):
            return _doubtful(result)
        _take(result, found, "ocr")
        result.text, result.trust = found.text, 1.0
        if layer.visible:
            result.notes.append(f"the text layer of page {result.number} cannot be believed; its picture was read")
        return result

    def _mixed(self, page: Any, layer: Layer, bare: list[Box], result: Page) -> Page:
        whole = layer.visible < _HARDLY_ANYTHING
        image = _rendered(page)
        texts = []
        for part in [image] if whole else [_cut(image, page, box) for box in bare]:
            found = self._ocr(part, result)
            if found is None or not found.text:
                continue
            result.method = "mixed"
            result.lines += found.lines
            texts.append(_without(found.text, layer.text) if whole else found.text)
        result.text = "\n".join(each for each in (layer.text, *texts) if each)
        return result

    def _checked_scan(self, page: Any, layer: Layer, result: Page) -> Page:
        """A scan with text under it: believe the layer when it says what a few lines of the picture say."""

        def agrees(sample: list[Line]) -> bool:
            clear = [line.text for line in sample if line.score >= 0.8]
            return not clear or sum(_stands_in(text, layer.text) for text in clear) >= len(clear) / 2

        deadline = time.monotonic() + self._limits.ocr_seconds_a_page
        found = self._recogniser.read(_rendered(page), deadline=deadline, believe=agrees)
        if found is None or not found.text:
            return result
        _take(result, found, "ocr")
        result.text, result.trust = found.text, 1.0
        result.notes.append(f"the text under the scan of page {result.number} is not what it shows; the scan was read")
        return result

    def _ocr(self, image: Image, result: Page) -> Recognition | None:
        found = self._recogniser.read(image, deadline=time.monotonic() + self._limits.ocr_seconds_a_page)
        if found is not None and not found.is_complete:
            result.notes.append(f"recognising page {result.number} took too long; the rest of it was left out")
        return found

    def _add_tables(self, pdf: Any, index: int, layer: Layer, result: Page) -> None:
        seconds = min(self._limits.table_seconds_a_page, self._table_seconds)
        if seconds <= 0:
            return
        started = time.monotonic()
        try:
            result.tables = table_room.read_tables(pdf, index, rotation=layer.angle, seconds=seconds)
        except table_room.TableTimeout:
            result.notes.append(f"finding the tables of page {index + 1} took too long; its text was kept")
        except Exception as error:  # noqa: BLE001 - a table more or less never costs the page its text
            result.notes.append(f"the tables of page {index + 1} could not be found ({type(error).__name__})")
        self._table_seconds -= time.monotonic() - started


def _doubtful(result: Page) -> Page:
    result.method = "text"
    result.notes.append(f"the characters of page {result.number} cannot be believed: its font says nothing certain")
    return result


def _take(result: Page, found: Recognition, method: Any) -> None:
    result.method = method
    result.lines = found.lines
    result.turned = found.turned
    result.cleaned += found.cleaned


def _content(page: Any) -> _Content:
    content = _Content()
    for each in page.get_objects(max_depth=4):
        content.objects += 1
        if content.objects > _MOST_OBJECTS:
            break
        if each.type not in (pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_PATH):
            continue
        try:
            box = tuple(each.get_bounds())
        except pdfium_helpers.PdfiumError:
            continue
        (content.pictures if each.type == pdfium.FPDF_PAGEOBJ_IMAGE else content.paths).append(box)
    return content


def _share(box: Box, page: Any) -> float:
    width, height = map(float, page.get_size())
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]) / (width * height)


def _has_text(textpage: Any, box: Box) -> bool:
    """Whether the layer has a few characters inside the box."""
    return _visible(textpage.get_text_bounded(*box)) >= 4


def _rendered(page: Any) -> Image:
    width, height = page.get_size()
    scale = min(DOTS_PER_INCH / 72, _LONGEST_PIXELS / max(width, height))
    scale = max(scale, min(DOTS_PER_INCH / 72, 40 / min(width, height)))
    image = page.render(scale=scale).to_numpy()
    return np.ascontiguousarray(image[:, :, :3]) if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)


def _has_ink(page: Any) -> bool:
    """Whether anything stands out from the page's ground, at a coarse look."""
    width, height = page.get_size()
    image = page.render(scale=min(1.0, 800 / max(width, height)), grayscale=True).to_numpy().astype(np.int16)
    return bool((np.abs(image - np.median(image)) > 40).mean() > _INK_SHARE)


def _cut(image: Image, page: Any, box: Box) -> Image:
    """The part of the rendered page that shows the box; the whole when the page is turned."""
    if page.get_rotation() != 0:
        return image
    left, bottom, _, top = page.get_bbox()
    scale = image.shape[0] / max(1.0, top - bottom)
    rows = slice(max(0, int((top - box[3]) * scale)), int((top - box[1]) * scale) + 1)
    columns = slice(max(0, int((box[0] - left) * scale)), int((box[2] - left) * scale) + 1)
    return np.ascontiguousarray(image[rows, columns])


def _visible(text: str) -> int:
    return sum(not each.isspace() for each in text)


def _stands_in(part: str, whole: str) -> bool:
    """Whether most of the words of a line stand in a text, near enough for a recognised line."""
    words = [word for word in _words(part) if len(word) > 1]
    if not words:
        return True
    known = set(_words(whole))
    near = sum(word in known or bool(difflib.get_close_matches(word, known, 1, 0.8)) for word in words[:12])
    return near >= min(len(words), 12) / 2


def _without(text: str, known: str) -> str:
    """The lines of a text that do not stand in another."""
    return "\n".join(line for line in text.split("\n") if not _stands_in(line, known))


def _words(text: str) -> Iterable[str]:
    return "".join(each if each.isalnum() else " " for each in text.casefold()).split()
