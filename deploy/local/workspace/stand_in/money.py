"""Amounts of money, the totals among them, and price lists that name their unit once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from deploy.local.workspace.stand_in.context import cleaned, label_before
from deploy.local.workspace.stand_in.text import Document, squeezed

_SIGNS = {
    "US$": "USD", "CA$": "CAD", "C$": "CAD", "AU$": "AUD", "A$": "AUD", "NZ$": "NZD", "HK$": "HKD", "S$": "SGD",
    "R$": "BRL", "MX$": "MXN", "$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR", "₽": "RUB", "₩": "KRW",
    "₺": "TRY", "₪": "ILS", "zł": "PLN", "Kč": "CZK", "ر.س": "SAR", "د.إ": "AED", "ج.م": "EGP", "د.ك": "KWD",
}  # fmt: skip
_CODES = (
    "USD", "EUR", "GBP", "CHF", "JPY", "CNY", "CAD", "AUD", "NZD", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "RON",
    "BGN", "TRY", "RUB", "UAH", "ILS", "INR", "BRL", "MXN", "ARS", "CLP", "COP", "PEN", "ZAR", "SAR", "AED", "EGP",
    "KWD", "QAR", "SGD", "HKD", "KRW", "THB", "IDR", "MYR", "PHP",
)  # fmt: skip
_CURRENCY = "|".join([*(rf"\b{code}\b" for code in _CODES), *(re.escape(sign) for sign in _SIGNS), r"\bFr\.(?=\s?\d)"])
_NUMBER = r"\d{1,3}(?:[.,'\u00a0]\d{3})+(?:[.,]\d{1,2})?(?!\d)|\d+(?:[.,]\d+)?"
_SCALES = {
    "thousand": 3, "tsd": 3, "mil": 3, "million": 6, "millions": 6, "mio": 6, "millones": 6, "millón": 6,
    "billion": 9, "mrd": 9,
}  # fmt: skip
_SCALE = rf"(?:\s(?P<{{name}}>{'|'.join(sorted(_SCALES, key=len, reverse=True))})\b\.?)?"
_AMOUNT = re.compile(
    rf"(?P<minus>-\s?)?(?P<before>{_CURRENCY})\s?(?P<minus2>-)?(?P<first>{_NUMBER})(?![\w%]){_SCALE.format(name='scale')}"
    rf"|(?<![\w.,/-])(?P<minus3>-)?(?P<second>{_NUMBER}){_SCALE.format(name='scale2')}\s?(?P<after>{_CURRENCY})(?!\w)",
    re.IGNORECASE,
)
_PLAIN = re.compile(rf"(?<![\w./-])(-?(?:{_NUMBER}))(?![\w%/-])")
_TOTAL = re.compile(
    r"(?i)(?:\bsub-?total\b|\b(?:grand |invoice |net |gross )?totals?\b|\b(?:amount|balance|total) (?:due|payable)\b"
    r"|\b(?:closing|opening|new|ending|beginning) balance\b"
    r"|\b(?:gesamt|end|rechnungs|brutto|netto)(?:betrag|summe)\b|\bzwischensumme\b|\bsumme\b|\bzu zahlen\b"
    r"|\b(?:neuer|alter|anfangs|end)\s?(?:konto)?(?:saldo|stand)\b"
    r"|\bimporte total\b|\btotal a pagar\b|\bmontant total\b|\bnet à payer\b|\bsaldo (?:final|inicial)\b)"
    r"|المجموع|الإجمالي|المبلغ المستحق"
)
_TOTAL_COLUMN = re.compile(r"(?i)[a-z*]\s+(?:totals?|summe|gesamt)$")
_MONEY_WORD = re.compile(
    r"(?i)\b(?:vat|tax|shipping|discount|fee|deposit|rent|salary|price|amount|mwst|ust|versand|rabatt|miete|kaution"
    r"|iva|impuesto|envío|descuento|tva|remise)\b"
)
_PRICE_LIST = re.compile(r"^(?P<name>\S.*?)\s*\((?P<unit>(?P<sign>\$|€|£|¢|cents?)\s?/\s?\w+)\)\s*$")
_PRICE_ROW = re.compile(r"^(?P<row>[A-Za-z][^\d$€£]*?)\s+(?P<low>\d+\.\d+)(?:\s-\s(?P<high>\d+\.\d+))?\b")
_PRICE_GAP = re.compile(r"^(?P<row>[A-Za-z][^\d$€£]*?)\s+unq\b")
_COMMA_DECIMALS = re.compile(r"\d,\d{2}(?![\d,])")
_POINT_DECIMALS = re.compile(r"\d\.\d{2}(?![\d.])")
_MOST = 200


@dataclass(frozen=True, slots=True)
class Amount:
    """A sum, its currency if the document names one, its label, and where it stands."""

    label: str | None
    value: Decimal
    currency: str | None
    start: int
    end: int
    is_total: bool = False


def find_amounts(document: Document) -> list[Amount]:
    """Every sum of the document in reading order, totals marked."""
    found = [*_price_lists(document), *_with_currency(document)]
    currencies = {one.currency for one in found if one.currency}
    only = currencies.pop() if len(currencies) == 1 else _stated_currency(document)
    taken = [(one.start, one.end) for one in found]
    found.extend(one for one in _on_labelled_lines(document, only) if not _overlaps(one, taken))
    unique = {(one.label, one.value, one.currency, one.start if one.is_total else -1): one for one in found}
    return sorted(unique.values(), key=lambda one: one.start)[:_MOST]


def parse_number(text: str, *, comma_decimals: bool = False) -> Decimal:
    """The value of a number as people write it in either convention."""
    digits = text.replace("'", "").replace("\u00a0", "").replace(" ", "")
    last = max(digits.rfind("."), digits.rfind(","))
    if last == -1:
        return Decimal(digits)
    sign, tail = digits[last], digits[last + 1 :]
    both = "." in digits and "," in digits
    grouped = not both and (digits.count(sign) > 1 or (len(tail) == 3 and (sign == "," or comma_decimals)))
    if grouped:
        return Decimal(re.sub(r"[.,]", "", digits))
    return Decimal(re.sub(r"[.,]", "", digits[:last]) + "." + tail)


def writes_comma_decimals(text: str) -> bool:
    """The document writes 1.234,56 rather than 1,234.56."""
    return len(_COMMA_DECIMALS.findall(text)) > len(_POINT_DECIMALS.findall(text))


def _with_currency(document: Document) -> Iterator[Amount]:
    comma_decimals = writes_comma_decimals(document.text)
    end, row_label, line_start = 0, None, -1
    for match in _AMOUNT.finditer(document.text):
        number = match["first"] or match["second"]
        value = parse_number(number, comma_decimals=comma_decimals)
        if scale := match["scale"] or match["scale2"]:
            value = value.scaleb(_SCALES[scale.lower()])
        if match["minus"] or match["minus2"] or match["minus3"]:
            value = -value
        line = document.lines[document.index_at(match.start())]
        if line.start != line_start:
            row = document.text[line.start : match.start()].lstrip(" 0123456789.)")
            line_start, row_label = line.start, cleaned(re.split(r"\d", row)[0])
        label = label_before(document, match.start(), end, {}) or row_label
        end = match.end()
        is_total = bool(_TOTAL.search(document.text[line.start : match.start()]) or (label and _TOTAL.search(label)))
        yield Amount(label, value, _code(match["before"] or match["after"]), match.start(), match.end(), is_total)


def _code(sign: str) -> str:
    if sign == "Fr.":
        return "CHF"
    return _SIGNS.get(sign) or _SIGNS.get(sign.upper()) or sign.upper()


def _on_labelled_lines(document: Document, currency: str | None) -> Iterator[Amount]:
    """Sums without a sign of their own, on lines that say they are sums; the last number of such a line."""
    comma_decimals = writes_comma_decimals(document.text)
    has_total_column = any(_TOTAL_COLUMN.search(line.text) for line in document.lines)
    for index, line in enumerate(document.lines):
        total = _TOTAL.search(line.text)
        word = total or (_MONEY_WORD.search(line.text) if currency else None)
        if word is None or word.start() > 40:
            continue
        place = line
        numbers = list(_PLAIN.finditer(line.text, word.end()))
        if not numbers and total and index + 1 < len(document.lines):
            place = document.lines[index + 1]
            numbers = [only] if (only := _PLAIN.fullmatch(place.text)) else []
        decimals = [one for one in numbers if re.search(r"[.,]\d{2}$", one[1])]
        usable = decimals or (numbers if total else [])
        # Of several bare numbers the last is the total if the last column is called so or all are money;
        # of a row that is no total nobody can say which one it means.
        if not usable or (len(usable) > 1 and not (total and (currency or has_total_column))):
            continue
        label = cleaned(re.split(r"[\d:]", line.text)[0]) or squeezed(word[0])
        last = usable[-1]
        value = parse_number(last[1], comma_decimals=comma_decimals)
        yield Amount(label, value, currency, place.start + last.start(), place.start + last.end(), bool(total))


def _stated_currency(document: Document) -> str | None:
    match = re.search(rf"(?i)\b(?:currency|währung|moneda|devise)\b\W{{0,3}}({_CURRENCY})", document.text)
    return _code(match[1]) if match else None


def _price_lists(document: Document) -> Iterator[Amount]:
    """Rows under a heading like ``Ethanol ($/gal)``: the first price or range, with the unit in the label."""
    heading: re.Match[str] | None = None
    for line in document.lines:
        if found := _PRICE_LIST.match(line.text):
            heading = found
            continue
        if heading is None or _PRICE_GAP.match(line.text):
            continue
        row = _PRICE_ROW.match(line.text)
        if row is None:
            heading = None
            continue
        currency = _SIGNS.get(heading["sign"])  # cents are no currency of their own: the unit says what they are
        label = f"{squeezed(heading['name'])} ({heading['unit']}), {squeezed(row['row'])}"
        for name, word in (("low", ", from"), ("high", ", to")):
            if row[name]:
                suffix = word if row["high"] else ""
                start, end = line.start + row.start(name), line.start + row.end(name)
                yield Amount(label + suffix, Decimal(row[name]), currency, start, end)


def _overlaps(one: Amount, taken: list[tuple[int, int]]) -> bool:
    return any(start < one.end and one.start < end for start, end in taken)
