"""PDFs that hurt: made on the spot, each with one thing wrong, for tests of everything that opens a PDF."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from io import BytesIO
from typing import Literal

_HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


class RawPdf:
    """A PDF written object by object, so that each of them can be wrong. Object 1 is the catalog, 2 the page tree."""

    def __init__(self) -> None:
        self._objects: dict[int, bytes] = {}
        self._next = 3

    def add(self, body: bytes, number: int | None = None) -> int:
        """Put an object in; its number."""
        number = self._take() if number is None else number
        self._objects[number] = body
        return number

    def stream(self, data: bytes, entries: bytes = b"") -> int:
        """Put a stream in; its number."""
        return self.add(b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries, data))

    def page(self, content: bytes, resources: bytes, box: str = "0 0 595 842", extra: bytes = b"") -> int:
        """Put a page in whose parent is object 2; its number."""
        number = self.stream(content)
        return self.add(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [%s] /Contents %d 0 R /Resources << %s >> %s >>"
            % (box.encode(), number, resources, extra)
        )

    def build(self, pages: Sequence[int]) -> bytes:
        """The file, with the catalog and the page tree that were not given."""
        kids = b" ".join(b"%d 0 R" % number for number in pages)
        self._objects.setdefault(1, b"<< /Type /Catalog /Pages 2 0 R >>")
        self._objects.setdefault(2, b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)))
        out = BytesIO()
        out.write(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
        offsets = {}
        for number, body in sorted(self._objects.items()):
            offsets[number] = out.tell()
            out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
        start = out.tell()
        out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(offsets) + 1))
        out.writelines(b"%010d 00000 n \n" % offsets[number] for number in sorted(offsets))
        out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(offsets) + 1, start))
        return out.getvalue()

    def _take(self) -> int:
        number, self._next = self._next, self._next + 1
        return number


def _shown(lines: Sequence[str], size: int = 12) -> bytes:
    """Content that shows Latin-1 lines in the font /F."""
    quoted = [line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)") for line in lines]
    shown = b"".join(b"(%s) Tj T*\n" % line.encode("latin-1") for line in quoted)
    return b"BT /F %d Tf %d TL 60 780 Td\n%sET" % (size, size + 4, shown)


def text_pdf(*pages: Sequence[str], box: str = "0 0 595 842") -> bytes:
    """Plain pages of Latin-1 lines."""
    pdf = RawPdf()
    font = pdf.add(_HELVETICA)
    resources = b"/Font << /F %d 0 R >>" % font
    return pdf.build([pdf.page(_shown(lines), resources, box) for lines in pages])


def many_pages(count: int, lines: int = 30) -> bytes:
    """A long text of `count` pages, each with its number on it."""
    pdf = RawPdf()
    font = pdf.add(_HELVETICA)
    resources = b"/Font << /F %d 0 R >>" % font
    filler = [f"Line {number}: the river stood at {number}.{number % 7} metres." for number in range(lines)]
    return pdf.build([pdf.page(_shown([f"Page {number}", *filler]), resources) for number in range(1, count + 1)])


def mapped_text(codes: Sequence[int], unicode_of: dict[int, str], before: str = "", after: str = "") -> bytes:
    """A page whose font maps the codes to these UTF-16 code units (hex), as broken subset fonts do."""
    pdf = RawPdf()
    rows = "\n".join(f"<{code:02x}> <{units}>" for code, units in unicode_of.items())
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def\n"
        "1 begincodespacerange <00> <ff> endcodespacerange\n"
        f"{len(unicode_of)} beginbfchar\n{rows}\nendbfchar endcmap end end"
    )
    to_unicode = pdf.stream(cmap.encode())
    glyphs = " ".join(f"{code} /fi" for code in unicode_of)
    font = pdf.add(
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode %d 0 R "
        b"/Encoding << /Type /Encoding /Differences [%s] >> >>" % (to_unicode, glyphs.encode())
    )
    hexed = before.encode("latin-1") + bytes(codes) + after.encode("latin-1")
    content = b"BT /F 14 Tf 60 700 Td <%s> Tj ET" % hexed.hex().encode()
    return pdf.build([pdf.page(content, b"/Font << /F %d 0 R >>" % font)])


def nul_ligature() -> bytes:
    """`specific` whose fi ligature the font maps to U+0000."""
    return mapped_text([1], {1: "0000"}, "Total: USD 25.00 for a speci", "c delivery")


def lone_surrogate() -> bytes:
    """Text with half a surrogate pair in it."""
    return mapped_text([1], {1: "d83d"}, "Total: USD 25.00 paid ", " in full")


def split_pair() -> bytes:
    """One character beyond the basic plane, mapped as two halves that belong together."""
    return mapped_text([1, 2], {1: "d83d", 2: "de00"}, "Total: USD 25.00 paid ", " in full")


def truncated(share: float = 0.7) -> bytes:
    """A text whose end is missing."""
    whole = text_pdf(["Invoice", "Total: USD 25.00"], *[[f"Page {number}"] for number in range(2, 30)])
    return whole[: int(len(whole) * share)]


def broken_startxref() -> bytes:
    """The pointer to the cross-reference table points nowhere."""
    whole = text_pdf(["Invoice", "Total: USD 25.00"])
    return whole[: whole.rindex(b"startxref")] + b"startxref\n999999\n%%EOF\n"


def zero_pages() -> bytes:
    """A well-formed document without a page."""
    return RawPdf().build([])


def page_tree_cycle() -> bytes:
    """A page tree that contains itself."""
    pdf = RawPdf()
    font = pdf.add(_HELVETICA)
    page = pdf.page(_shown(["round and round"]), b"/Font << /F %d 0 R >>" % font)
    pdf.add(b"<< /Type /Pages /Kids [2 0 R %d 0 R 2 0 R] /Count 3 >>" % page, 2)
    return pdf.build([page])


def inline_image_without_end() -> bytes:
    """An inline image whose end mark never comes."""
    pdf = RawPdf()
    font = pdf.add(_HELVETICA)
    content = _shown(["before the picture"]) + b"\nBI /W 4000 /H 4000 /BPC 8 /CS /RGB ID " + b"\x00\x01" * 2000
    return pdf.build([pdf.page(content, b"/Font << /F %d 0 R >>" % font)])


def nested_forms(depth: int = 14, times: int = 9) -> bytes:
    """A page that draws a form that draws a form …: `times` ** `depth` pieces of text, days of work."""
    pdf = RawPdf()
    font = pdf.add(_HELVETICA)
    inner = pdf.stream(
        b"BT /F 8 Tf (x) Tj ET",
        b"/Type /XObject /Subtype /Form /BBox [0 0 600 800] /Resources << /Font << /F %d 0 R >> >>" % font,
    )
    for _ in range(depth):
        inner = pdf.stream(
            b"/N Do " * times,
            b"/Type /XObject /Subtype /Form /BBox [0 0 600 800] /Resources << /XObject << /N %d 0 R >> >>" % inner,
        )
    return pdf.build([pdf.page(b"/N Do", b"/XObject << /N %d 0 R >>" % inner)])


def nested_flate(layers: int = 4, size: int = 60_000_000) -> bytes:
    """A content stream of blanks, compressed again and again: some hundred bytes that unfold to megabytes."""
    pdf = RawPdf()
    data = b" " * size
    for _ in range(layers):
        data = zlib.compress(data, 9)
    filters = b"/Filter [%s]" % (b"/FlateDecode " * layers)
    content = pdf.stream(data, filters)
    page = pdf.add(
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R /Resources << >> >>" % content
    )
    return pdf.build([page])


def encrypted(
    *, user: str = "", revision: Literal[3, 4, 6] = 3, lines: Sequence[str] = ("Invoice", "Total: USD 25.00")
) -> bytes:
    """A text under a password; an empty one only forbids copying. Revision 3 is RC4, 4 AES-128, 6 AES-256."""
    import pikepdf

    out = BytesIO()
    allowed = pikepdf.Permissions(extract=False, modify_annotation=False, modify_form=False, modify_other=False)
    locks = pikepdf.Encryption(
        owner="owner",
        user=user,
        R=revision,
        allow=allowed,
        aes=revision >= 4,
        metadata=revision >= 4,
    )
    with pikepdf.open(BytesIO(text_pdf(lines))) as pdf:
        pdf.save(out, encryption=locks)
    return out.getvalue()


def blank_pages(*boxes: str) -> bytes:
    """Pages with nothing on them, of these sizes."""
    pdf = RawPdf()
    return pdf.build([pdf.page(b"", b"", box) for box in boxes or ("0 0 595 842",)])


def one_dot() -> bytes:
    """A page with a single dot."""
    pdf = RawPdf()
    return pdf.build([pdf.page(b"0 0 0 rg 300 400 1 1 re f", b"")])


def vector_drawing() -> bytes:
    """A page with lines and boxes and no letter."""
    pdf = RawPdf()
    strokes = b"".join(b"%d 100 m %d 700 l S\n" % (60 + 9 * number, 500 - 7 * number) for number in range(40))
    return pdf.build([pdf.page(b"2 w\n" + strokes + b"80 80 400 300 re S", b"")])


def image_pdf(width: int, height: int, gray: bytes, *, layer: str | None = None, box: str = "0 0 595 842") -> bytes:
    """A page that is one grey picture, with an invisible text layer under it when there is one."""
    pdf = RawPdf()
    entries = b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 8" % (
        width,
        height,
    )
    picture = pdf.stream(zlib.compress(gray), entries + b" /Filter /FlateDecode")
    resources = b"/XObject << /I %d 0 R >>" % picture
    _, _, right, top = box.split()
    content = b"q %s 0 0 %s 0 0 cm /I Do Q" % (right.encode(), top.encode())
    if layer is not None:
        resources += b" /Font << /F %d 0 R >>" % pdf.add(_HELVETICA)
        shown = _shown(layer.split("\n")).replace(b"BT ", b"BT 3 Tr ")
        content += b"\n" + shown.replace(b"60 780 Td", b"60 %d Td" % (int(top) - 60))
    return pdf.build([pdf.page(content, resources, box)])


def not_pdfs() -> dict[str, bytes]:
    """What people call .pdf and is none, by what it is."""
    return {
        "html": b"<!DOCTYPE html><html><body>Not found</body></html>",
        "png": b"\x89PNG\r\n\x1a\n" + b"\x00" * 64,
        "text": b"PDF",
        "zeros": bytes(2_048),
    }
