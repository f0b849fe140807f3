"""The text layer: its characters, whether they can be believed, and the order in which a person reads them.

Believing. A layer can be there and be nonsense: fonts without a character map, maps made by a bad tool.
`layer_trust` is 1 minus what speaks against it: characters that the font did not map, replacement,
private-use and control characters (each weighs three times, so a third of them means 0), letters of
different scripts inside one word, and pages of signs that are neither letters nor digits. Below
`TRUSTED` the layer counts as garbage and the page is recognised from its picture instead.

Order. A file draws in any order, mostly a good one, and its own columns are better kept than guessed. Only
where nearly every visual line is torn apart in the file (a table drawn column by column, line numbers drawn
first) and the pieces are too short to be columns of prose, the lines are put together again row by row.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pypdfium2.raw as pdfium

from shared.contract.text import clean_text

TRUSTED = 0.5
_PROSE_CHARACTERS = 24
_TORN_SHARE = 0.85
_SAMPLE = 400
_PLAIN_SIGNS = frozenset(".,;:!?'\"()[]{}<>/\\|-–—_+*=%&#@$€£¥§°•·…“”‘’«»")


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text in one line, with its box; y grows upwards."""

    left: float
    bottom: float
    right: float
    top: float
    text: str

    @property
    def middle(self) -> float:
        """The height of its centre."""
        return (self.bottom + self.top) / 2

    @property
    def height(self) -> float:
        """How high it is; never 0."""
        return max(0.1, self.top - self.bottom)


@dataclass(frozen=True, slots=True)
class Layer:
    """The text layer of one page."""

    text: str
    trust: float
    cleaned: int
    angle: int

    @property
    def visible(self) -> int:
        """How many characters are not blank."""
        return sum(not each.isspace() for each in self.text)


def read_layer(textpage: Any) -> Layer:
    """The page's text in reading order."""
    count = textpage.count_chars()
    if count <= 0:
        return Layer("", 1.0, 0, 0)
    raw, cleaned = clean_text(textpage.get_text_bounded(errors="surrogatepass"))
    # pdfium leaves what the font maps to U+0000 out of its text without a word: only then is the text shorter.
    nulls = _count_nulls(textpage, count) if len(raw) + cleaned < count else 0
    text = _tidy(raw)
    angle = dominant_angle(textpage, count)
    trust = layer_trust(text, unmapped_share(textpage, count))
    if trust >= TRUSTED:
        text = _reordered(textpage, text, angle)
    return Layer(text, trust, cleaned + nulls, angle)


def _count_nulls(textpage: Any, count: int) -> int:
    """How many characters the font maps to U+0000."""
    return sum(pdfium.FPDFText_GetUnicode(textpage, index) == 0 for index in range(min(count, 20_000)))


def _tidy(text: str) -> str:
    """Lines without trailing blanks; a hyphen that pdfium marks as a word's break (U+FFFE) joins the word again."""
    joined = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufffe\n", "").replace("\ufffe", "")
    return "\n".join(line.rstrip() for line in joined.split("\n")).strip("\n")


def unmapped_share(textpage: Any, count: int) -> float:
    """The share of characters for which the font has no usable Unicode map, in an even sample."""
    indices = range(0, count, max(1, count // _SAMPLE))
    unmapped = sum(pdfium.FPDFText_HasUnicodeMapError(textpage, index) == 1 for index in indices)
    return float(unmapped) / max(1, len(indices))


def dominant_angle(textpage: Any, count: int) -> int:
    """The direction of most of the text on the unturned page: 0, 90, 180 or 270 degrees counter-clockwise."""
    angles: Counter[int] = Counter()
    for index in range(0, count, max(1, count // 200)):
        radians = pdfium.FPDFText_GetCharAngle(textpage, index)
        if radians >= 0:
            angles[round(radians * 180 / 3.14159265 / 90) % 4 * 90] += 1
    return angles.most_common(1)[0][0] if angles else 0


def layer_trust(text: str, unmapped: float) -> float:
    """How far the characters can be believed, 0..1; see the top of this module for the rule."""
    visible = [each for each in text if not each.isspace()]
    if not visible:
        return 1.0
    bad = sum(unicodedata.category(each) in ("Cc", "Co", "Cn", "Cs") or each == "\ufffd" for each in visible)
    odd = sum(_is_odd(each) for each in visible)
    doubt = 3 * max(bad / len(visible), unmapped) + 2 * max(0.0, _mixed_words(text) - 0.05)
    if len(visible) >= 20:
        doubt += max(0.0, odd / len(visible) - 0.4) * 2
    return max(0.0, 1.0 - doubt)


def _is_odd(sign: str) -> bool:
    """Neither a letter or figure, nor what people write between them."""
    return not sign.isalnum() and sign not in _PLAIN_SIGNS and unicodedata.category(sign)[0] != "M"


def _mixed_words(text: str) -> float:
    """The share of words whose letters come from more than one script."""
    words = [word for word in text.split() if sum(map(str.isalpha, word)) >= 3]
    if not words:
        return 0.0
    return sum(len({_script(each) for each in word if each.isalpha()}) > 1 for word in words) / len(words)


def _script(letter: str) -> str:
    if letter.isascii():
        return "LATIN"
    name = unicodedata.name(letter, "").split(" ")[0]
    return "CJK" if name in ("HIRAGANA", "KATAKANA", "FULLWIDTH", "HALFWIDTH", "IDEOGRAPHIC") else name


def _reordered(textpage: Any, text: str, angle: int) -> str:
    runs = read_runs(textpage, angle)
    if len(runs) < 6:
        return text
    rows = rows_of(runs)
    places = {id(run): index for index, run in enumerate(runs)}
    torn = [
        row for row in rows if any(places[id(run)] != places[id(before)] + 1 for before, run in itertools.pairwise(row))
    ]
    if len(torn) < max(3, _TORN_SHARE * sum(len(row) > 1 for row in rows)):
        return text
    if statistics.median(len(run.text) for row in torn for run in row) >= _PROSE_CHARACTERS:
        return text
    return rows_text(rows)


def read_runs(textpage: Any, angle: int) -> list[Run]:
    """The pieces of text as pdfium groups them, in the file's order, turned so that they read left to right."""
    runs = []
    for index in range(textpage.count_rects()):
        left, bottom, right, top = textpage.get_rect(index)
        text, _ = clean_text(_bounded(textpage, left, bottom, right, top))
        text = " ".join(text.replace("\ufffe", "-").split())
        if text:
            runs.append(_turned(Run(left, bottom, right, top, text), angle))
    return runs


def _bounded(textpage: Any, left: float, bottom: float, right: float, top: float) -> str:
    length = pdfium.FPDFText_GetBoundedText(textpage, left, top, right, bottom, None, 0)
    if length <= 0:
        return ""
    buffer = (ctypes.c_ushort * (length + 1))()
    pdfium.FPDFText_GetBoundedText(textpage, left, top, right, bottom, buffer, length)
    return bytes(memoryview(buffer))[: length * 2].decode("utf-16-le", "surrogatepass").rstrip("\x00")


def _turned(run: Run, angle: int) -> Run:
    match angle:
        case 90:
            return Run(run.bottom, -run.right, run.top, -run.left, run.text)
        case 180:
            return Run(-run.right, -run.top, -run.left, -run.bottom, run.text)
        case 270:
            return Run(-run.top, run.left, -run.bottom, run.right, run.text)
        case _:
            return run


def rows_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Visual lines from top to bottom, each from left to right: a piece belongs where its centre, or theirs, lies."""
    rows: list[list[Run]] = []
    for run in sorted(runs, key=lambda each: -each.middle):
        tallest = max(rows[-1], key=lambda each: each.height) if rows else None
        if tallest is not None and (_spans(tallest, run.middle) or _spans(run, tallest.middle)):
            rows[-1].append(run)
        else:
            rows.append([run])
    return [sorted(row, key=lambda each: each.left) for row in rows]


def _spans(run: Run, height: float) -> bool:
    """Whether the height lies inside the middle four fifths of the run."""
    return abs(run.middle - height) <= run.height * 0.4


def rows_text(rows: Sequence[Sequence[Run]]) -> str:
    """The lines as text; a gap wider than a letter's height becomes two blanks, so that cells stay apart."""
    lines = []
    for row in rows:
        line = row[0].text
        for before, run in itertools.pairwise(row):
            line += ("  " if run.left - before.right > before.height else " ") + run.text
        lines.append(line)
    return "\n".join(lines)


def columns_of(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of each prose column from left to right; one list when the page is not set in columns.

    A gutter is an upright strip that at most a twentieth of the runs cross, with eight or more lines of
    prose on each side.
    """
    if len(runs) < 16:
        return [list(runs)]
    left, right = min(run.left for run in runs), max(run.right for run in runs)
    for step in range(5, 16):
        x = left + (right - left) * step / 20
        beside_left = [run for run in runs if run.right <= x]
        beside_right = [run for run in runs if run.left >= x]
        if min(len(beside_left), len(beside_right)) < 8:
            continue
        if len(beside_left) + len(beside_right) < len(runs) * 0.95:
            continue
        if min(_median_length(beside_left), _median_length(beside_right)) >= _PROSE_CHARACTERS:
            crossing = [run for run in runs if run.left < x < run.right]
            return [crossing + beside_left, *columns_of(beside_right)]
    return [list(runs)]


def _median_length(runs: Sequence[Run]) -> float:
    return statistics.median(len(run.text) for run in runs)
