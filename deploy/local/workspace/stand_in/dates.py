"""Dates in many spellings and six languages, each with the words that say what it is the date of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from deploy.local.workspace.stand_in.context import label_before
from deploy.local.workspace.stand_in.text import Document

_MONTH_NAMES = (
    "january jan januar jän enero ene janvier janv gennaio gen janeiro يناير",
    "february feb februar febrero février fevrier févr febbraio fevereiro فبراير",
    "march mar märz maerz mär marzo mars março مارس",
    "april apr abril abr avril avr aprile أبريل ابريل",
    "may mai mayo maggio mag maio مايو",
    "june jun juni junio juin giugno giu junho يونيو",
    "july jul juli julio juillet juil luglio lug julho يوليو",
    "august aug agosto ago août aout أغسطس اغسطس",
    "september sep sept septiembre setiembre septembre settembre set setembro سبتمبر",
    "october oct oktober okt octubre octobre ottobre ott outubro أكتوبر اكتوبر",
    "november nov noviembre novembre novembro نوفمبر",
    "december dec dezember dez diciembre dic décembre decembre déc dicembre dezembro ديسمبر",
)
_MONTHS = {name: number for number, names in enumerate(_MONTH_NAMES, 1) for name in names.split()}
_NAMES = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DAY_FIRST = re.compile(
    rf"(?<![\w.])(\d{{1,2}})(?:st|nd|rd|th|er|\.|º|°)?[ \u00a0\-/]{{0,3}}(?:(?:de|of|del)[ ]{{1,3}})?(?:day of )?"
    rf"({_NAMES})\b\.?,?[\s\-/]{{0,3}}(?:(?:de|del|of)\s{{1,3}})?(\d{{4}})(?!\d)",
    re.IGNORECASE,
)
_MONTH_FIRST = re.compile(
    rf"(?<!\w)({_NAMES})\b\.?[\s\-]{{1,3}}(\d{{1,2}})(?:st|nd|rd|th)?,?[\s\-]{{1,3}}(\d{{4}})(?!\d)", re.IGNORECASE
)
_YEAR_FIRST = re.compile(r"(?<![\d./-])(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?![\d/]|[-.]\d)")
_NUMBERS = re.compile(r"(?<![\d./-])(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?![\d/]|[-.]\d)")
_SPACED = re.compile(r"(?m)^[ \t]*(\d{4}) (\d{1,2}) (\d{1,2})[ \t]*$")
_DAY_FIRST_WORDS = re.compile(
    r"€|£|\bEUR\b|\bGBP\b|(?i:\b(?:rechnung|datum|fecha|factura|vertrag|straße|calle|rue)\b)|[؀-ۿ]"
)
# Looked for in the words right before a date inside a sentence.
_MEANINGS = {
    r"comments?\b.*\bby$": "comments due by",
    r"\beffective\b.{0,25}$": "effective date",
    r"\b(?:due|payable|payment)\b.{0,25}$": "due date",
    r"\b(?:expir\w+|terminat\w+|valid until|ends? on|end of the term)\b.{0,25}$": "end date",
    r"\b(?:dated|made|entered into)\b.{0,40}$": "date of document",
    r"\b(?:commenc\w+|begin\w*|starts?|starting)\b.{0,25}$": "start date",
    r"\b(?:issued|published)\b.{0,10}$": "issue date",
    r"\bsigned\b.{0,25}$": "signature date",
}
_MANY = 30
_CENTURY_TURN = 70


@dataclass(frozen=True, slots=True)
class FoundDate:
    """A date, its name in the document, and where it stands."""

    label: str | None
    day: date
    start: int
    end: int
    in_column: bool = False


def find_dates(document: Document) -> list[FoundDate]:
    """Every date of the document in reading order; of a long column only the first and the last day."""
    found: list[FoundDate] = []
    seen: set[tuple[str | None, date]] = set()
    columns: dict[int, str] = {}
    end = 0
    for start, until, day in _spelled(document):
        index = document.index_at(start)
        label = label_before(document, start, end, _MEANINGS)
        in_column = False
        if label is None and found and document.index_at(found[-1].start) == index:
            label = found[-1].label
        if label is None and document.lines[index].start == start and index - 1 in columns:
            label, in_column = columns[index - 1], True
        if label is not None and document.lines[index].start == start:
            columns[index] = label
        end = until
        if (label, day) not in seen:
            seen.add((label, day))
            found.append(FoundDate(label, day, start, until, in_column))
    return found if len(found) <= _MANY else _shortened(found)


def first_date(text: str) -> date | None:
    """The first date in a text."""
    return next((day for _, _, day in _spelled(Document(text))), None)


def _spelled(document: Document) -> Iterator[tuple[int, int, date]]:
    text = document.text
    day_first = _is_day_first(text)
    spellings: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], date | None]]] = [
        (_DAY_FIRST, lambda match: _date(match[3], _MONTHS[match[2].lower()], match[1])),
        (_MONTH_FIRST, lambda match: _date(match[3], _MONTHS[match[1].lower()], match[2])),
        (_YEAR_FIRST, lambda match: _date(match[1], match[3], match[4])),
        (_SPACED, lambda match: _date(match[1], match[2], match[3])),
        (_NUMBERS, lambda match: _from_numbers(match, day_first=day_first)),
    ]
    candidates = [
        (match.start(1), match.end(), read(match)) for pattern, read in spellings for match in pattern.finditer(text)
    ]
    end = 0
    for start, until, day in sorted(candidates, key=lambda one: one[:2]):
        if day is not None and start >= end:
            yield start, until, day
            end = until


def _is_day_first(text: str) -> bool | None:
    """How the document writes numeric dates: proved by one that reads only one way, else by its language."""
    for match in _NUMBERS.finditer(text):
        first, second = int(match[1]), int(match[3])
        if max(first, second) > 12 and min(first, second) <= 12:
            return first > second
    if _DAY_FIRST_WORDS.search(text):
        return True
    return False if re.search(r"\$|\bUSD\b|\b(?:U\.S\.|United States|Inc\.|LLC)\b", text) else None


def _from_numbers(match: re.Match[str], *, day_first: bool | None) -> date | None:
    first, sign, second, year = match.groups()
    if len(year) == 2 and (sign == "-" or (sign == "." and len(first) + len(second) < 4)):
        return None  # 1.2.10 is a version, 12-10-24 a number of something
    if sign == "." or first == second:
        day_first = True
    if day_first is None:
        return None  # 03/04/2024 says nothing without a hint; no date is better than a wrong one
    day, month = (first, second) if day_first else (second, first)
    return _date(year, month, day)


def _date(year: str, month: str | int, day: str) -> date | None:
    number = int(year)
    if len(year) == 2:
        number += 2000 if number < _CENTURY_TURN else 1900
    try:
        found = date(number, int(month), int(day))
    except ValueError:
        return None
    return found if 1900 <= number <= 2100 else None


def _shortened(found: Sequence[FoundDate]) -> list[FoundDate]:
    named = [one for one in found if one.label and not one.in_column]
    counts: dict[str | None, list[FoundDate]] = {}
    for one in found:
        counts.setdefault(one.label, []).append(one)
    kept = [one for one in named if len(counts[one.label]) <= 3]
    for label, column in counts.items():
        if all(one in kept for one in column):
            continue
        for word, one in (("earliest", min(column, key=_day)), ("latest", max(column, key=_day))):
            kept.append(FoundDate(f"{word} {label or 'date in table'}", one.day, one.start, one.end))
    return kept[:_MANY]


def _day(found: FoundDate) -> date:
    return found.day
