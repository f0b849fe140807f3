"""Does a value stand in the document? Finding quotes, and comparing values with what is quoted. No I/O.

A quote is looked for in the text with case, blanks, line breaks, hyphenation, quotation marks and ligatures
made equal. On recognised pages, where single letters may be wrong, a line that is at least nine tenths
the same counts as found.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from services.document_agent.messages import Page

_QUOTES = str.maketrans("‘’“”„«»–—−", '\'\'"""""---', "\u00ad")
_BROKEN_WORD = re.compile(r"(?<=\w)-\s*\n\s*(?=\w)")
_NUMBER = re.compile(r"[-+(]?\d[\d.,'\u00a0 ]*\d|\d")
_DIGITS = {ord(each): str(unicodedata.digit(each)) for each in "٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹०१२३४५६७८९"} | {
    0x066B: ".", 0x066C: ",",
}  # fmt: skip
_SIGNS = {
    "USD": ("$", "us$", "dollar"), "EUR": ("€", "euro"), "GBP": ("£", "pound"), "JPY": ("¥", "yen", "円"),
    "CNY": ("¥", "元", "rmb", "yuan"), "CHF": ("fr.", "sfr", "franken"), "INR": ("₹", "rs"), "RUB": ("₽", "руб"),
    "PLN": ("zł",), "CZK": ("kč",), "KRW": ("₩", "won"), "TRY": ("₺", "tl"), "UAH": ("₴", "грн"),
    "SAR": ("ر.س", "ريال"), "AED": ("د.إ", "درهم"), "ILS": ("₪",), "SEK": ("kr",), "NOK": ("kr",), "DKK": ("kr",),
    "BRL": ("r$",), "CAD": ("c$", "ca$", "$"), "AUD": ("a$", "au$", "$"), "EGP": ("ج.م",), "KWD": ("د.ك",),
}  # fmt: skip
_NEAR = 0.9
FUZZY_FOUND = 0.9
"""What a quote that only nearly stands there is worth, against 1 for a literal one."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a quote stands: its page, how literally (0..1), and how far the characters there can be believed."""

    page: int
    literal: float
    source: float


def folded(text: str) -> str:
    """The text with everything made equal that does not matter for finding a quote."""
    whole = unicodedata.normalize("NFKC", _BROKEN_WORD.sub("", text)).translate(_QUOTES)
    return " ".join(whole.casefold().split())


class DocumentIndex:
    """The pages of a document, ready to be searched."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = list(pages)
        self._folded = [folded(page.text) for page in pages]
        self._dense = [text.replace(" ", "") for text in self._folded]
        self._whole: str | None = None

    def find(self, quote: str | None, among: Sequence[int] = ()) -> Found | None:
        """Where the quote stands, looked for first on the pages `among`; None when nowhere."""
        wanted = folded(quote or "").strip(" .…")
        if not wanted:
            return None
        near = frozenset(among)
        order = sorted(range(len(self._pages)), key=lambda index: self._pages[index].number not in near)
        dense = wanted.replace(" ", "")
        for index in order:
            if wanted in self._folded[index] or (len(dense) >= 6 and dense in self._dense[index]):
                return self._found(index, wanted, 1.0)
        return self._across(dense, order) or self._nearly(wanted, order, near)

    def contains(self, text: str) -> bool:
        """Whether the folded text stands anywhere."""
        if self._whole is None:
            self._whole = " ".join(self._folded)
        return text in self._whole

    def _found(self, index: int, wanted: str, literal: float) -> Found:
        page = self._pages[index]
        return Found(page.number, literal, source_score(page, wanted))

    def _across(self, dense: str, order: Sequence[int]) -> Found | None:
        """A quote that goes over a page break."""
        if len(dense) < 12:
            return None
        for index in order:
            if index + 1 < len(self._dense):
                tail, head = self._dense[index][-len(dense) :], self._dense[index + 1][: len(dense)]
                if dense in tail + head:
                    return self._found(index, dense, 1.0)
        return None

    def _nearly(self, wanted: str, order: Sequence[int], among: frozenset[int]) -> Found | None:
        """A recognised line that is nearly the same; only where letters may have been misread."""
        for index in order:
            page = self._pages[index]
            if page.method not in ("ocr", "mixed") or (among and page.number not in among):
                continue
            for line in page.text.split("\n"):
                if _similarity(wanted, folded(line)) >= _NEAR:
                    return self._found(index, wanted, FUZZY_FOUND)
        return None


def _similarity(wanted: str, line: str) -> float:
    """How much of the wanted text the line has, in order."""
    if not line or len(line) < len(wanted) * 0.8:
        return 0.0
    matcher = difflib.SequenceMatcher(None, wanted, line, autojunk=False)
    if matcher.real_quick_ratio() < 0.3:
        return 0.0
    return sum(block.size for block in matcher.get_matching_blocks() if block.size > 1) / len(wanted)


def source_score(page: Page, wanted: str) -> float:
    """How far the characters of this quote can be believed: the layer's trust, or the score of the recognised lines."""
    if page.method == "text" or not page.lines:
        return page.trust
    scores = [line.score for line in page.lines if _shares(folded(line.text), wanted)]
    if scores:
        return sum(scores) / len(scores)
    return page.trust if page.method == "mixed" else (page.ocr_score or 0.0)


def _shares(line: str, wanted: str) -> bool:
    if not line or not wanted:
        return False
    return line in wanted or wanted in line or line.replace(" ", "") in wanted.replace(" ", "")


def numbers_in(text: str) -> set[Decimal]:
    """Every number that a text may mean, read with both decimal conventions."""
    values: set[Decimal] = set()
    for match in _NUMBER.finditer(text.translate(_DIGITS)):
        negative = match[0].startswith(("-", "("))
        for reading in _readings(match[0].strip("+-( ,.'")):
            values.update({reading, -reading} if negative else {reading})
        for part in re.split(r"\s+", match[0].strip("+-( ")):
            values.update(_readings(part.strip(",.'")))
    return values


def _readings(digits: str) -> list[Decimal]:
    plain = re.sub(r"[\s'\u00a0]", "", digits)
    candidates = {plain.replace(",", ""), plain.replace(".", "").replace(",", ".")}
    readings = []
    for each in candidates:
        try:
            readings.append(Decimal(each))
        except InvalidOperation:
            continue
    return readings


def agreement(kind: str, value: object, quote: str, index: DocumentIndex) -> float:
    """How well a value agrees with its quote: 1 the same, 0 a contradiction, between them partly or not comparable."""
    match kind:
        case "derived":
            return 0.9
        case "amount" | "number":
            return _agrees_number(value, quote)
        case "date":
            return _agrees_date(str(value), quote, index)
        case "currency":
            return _agrees_currency(str(value), quote, index)
        case _:
            return _agrees_text(str(value), quote)


def _agrees_number(value: object, quote: str) -> float:
    try:
        wanted = Decimal(str(value).replace(" ", ""))
    except InvalidOperation:
        return _agrees_text(str(value), quote)
    scales = (Decimal(1), Decimal(1000), Decimal(1_000_000), Decimal(1_000_000_000))
    found = numbers_in(quote)
    if wanted in found or -wanted in found:
        return 1.0
    return 0.8 if any(wanted == number * scale for number in found for scale in scales[1:]) else 0.0


def _agrees_date(value: str, quote: str, index: DocumentIndex) -> float:
    """Day and year must stand in the quote; a year that only stands elsewhere in the document counts partly."""
    match = re.match(r"(\d{4})-(\d{2})-(\d{2})", value)
    if match is None:
        return _agrees_text(value, quote)
    year, month, day = match.groups()
    numbers = set(re.findall(r"\d+", quote.translate(_DIGITS)))
    has_day = bool({day, str(int(day))} & numbers) or f"{year}{month}{day}" in numbers
    has_month = bool({month, str(int(month))} & numbers) or any(each.isalpha() for each in quote)
    if not has_day or not has_month:
        has_month_only = day == "01" and year in numbers and has_month
        return 0.6 if has_month_only else 0.0
    if year in numbers or year[2:] in numbers or f"{year}{month}{day}" in numbers:
        return 1.0
    return 0.6 if index.contains(year) else 0.0


def _agrees_currency(value: str, quote: str, index: DocumentIndex) -> float:
    code = value.strip().casefold()
    signs = (code, *_SIGNS.get(value.strip().upper(), ()))
    if any(sign in quote.casefold() for sign in signs):
        return 1.0
    return 0.8 if any(index.contains(sign) for sign in signs) else 0.0


def _agrees_text(value: str, quote: str) -> float:
    wanted = re.findall(r"\w+", folded(value))
    there = set(re.findall(r"\w+", folded(quote)))
    if not wanted:
        return 0.0
    if folded(value) in folded(quote):
        return 1.0
    share = sum(word in there for word in wanted) / len(wanted)
    return share if share >= 0.5 else 0.0
