"""Pictures of text: scans upright and sideways, files that mix both, a file cut short."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from deploy.local.documents.business import invoice
from deploy.local.documents.paper import Made, Paper, font_folder

_WIDTH, _HEIGHT = 1240, 1754
_LETTER = (
    "Lakeside Clockmakers",
    "14 Mill Street, Kendal",
    "",
    "Date: 22 January 2026",
    "",
    "Dear Mrs Appleby,",
    "thank you for your order of two wall clocks.",
    "The price of both together is £318.00.",
    "Delivery is planned for 6 February 2026.",
    "",
    "Yours sincerely,",
    "Thomas Reed",
)
_NOTE = ("Delivery note 5512", "Received on 3 February 2026", "Goods: two wall clocks", "Signed: M. Appleby")


def picture(lines: tuple[str, ...], *, size: int = 34, noise: int = 8) -> Image.Image:
    """A page as a scanner sees it: letters a little soft, the paper not quite white."""
    sheet = Image.new("L", (_WIDTH, _HEIGHT), 246)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.truetype(str(font_folder() / "DejaVuSerif.ttf"), size)
    for number, line in enumerate(lines):
        draw.text((130, 150 + number * size * 2), line, fill=28, font=font)
    grain = np.random.default_rng(7).normal(0, noise, (_HEIGHT, _WIDTH))
    soft = np.asarray(sheet.filter(ImageFilter.GaussianBlur(0.6)), dtype=np.float64)
    return Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8))


def scan_page(paper: Paper, image: Image.Image) -> None:
    """Put a picture over the whole of the current page."""
    file = BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=70)
    paper.image(file, x=0, y=0, w=paper.w, h=paper.h)


def scanned_letter() -> Made:
    """A letter that is nothing but a picture."""
    paper = Paper()
    scan_page(paper, picture(_LETTER))
    return paper.made(dates=["2026-01-22", "2026-02-06"], amounts=[("318.00", "GBP")], text=["Lakeside Clockmakers"])


def sideways_scan() -> Made:
    """The same letter, laid on the scanner sideways."""
    paper = Paper(landscape=True)
    scan_page(paper, picture(_LETTER).rotate(90, expand=True))
    return paper.made(dates=["2026-01-22", "2026-02-06"], amounts=[("318.00", "GBP")], text=["Lakeside Clockmakers"])


def text_and_scans() -> Made:
    """A text page, a scan, a blank page, and a page of text with a scanned slip on it."""
    paper = Paper()
    paper.heading("Order file 5512")
    paper.lines("Customer: Appleby Interiors", "Opened on 19 January 2026")
    paper.add_page()
    scan_page(paper, picture(_NOTE))
    paper.add_page()
    paper.add_page()
    paper.lines("The slip below came with the goods.")
    file = BytesIO()
    picture(("Slip 77", "Carriage paid: £12.40"), size=40).crop((0, 100, _WIDTH, 500)).save(file, "PNG")
    paper.image(file, x=56, y=200, w=480)
    return paper.made(
        dates=["2026-01-19", "2026-02-03"], amounts=[("12.40", "GBP")], methods=["text", "ocr", "blank", "mixed"]
    )


def cut_short() -> Made:
    """An invoice whose file lost its end on the way: it is repaired, and says so."""
    whole = invoice()
    kept = whole.data[: whole.data.rindex(b"startxref")]
    return Made(kept, whole.pages, {**whole.expected, "damage": True})
