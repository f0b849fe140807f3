"""What a value found in a line is called there: the label before it, above it, or in its sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping

from deploy.local.workspace.stand_in.text import Document, squeezed

_MOST_WORDS = 6
_MOST_CHARACTERS = 60
_SENTENCE_CHARACTERS = 160
_BREAK = re.compile(r"[:;|•·=]|\s{3,}|\.{3,}|\.\s|\t|,\s(?=\D)|(?<!\S)[-+(]?\d[\w.,/%()-]*\s")
_WEEKDAY = re.compile(
    r"\b(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?\b[.,]?"
    r"|\b(?:montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag)\b[.,]?"
    r"|\b(?:lunes|martes|miércoles|jueves|viernes|sábado|domingo)\b[.,]?",
    re.IGNORECASE,
)
_LEADING = re.compile(r"^(?:and|or|und|y|et|the|a|of|by|on|at|to|-|–|\W)+\s+|^[\W\d_]+", re.IGNORECASE)
_TRAILING = re.compile(
    r"(?:\s+(?:is|of|by|on|at|(?<!up )to|the|a|an|den|dem|el|la|le|del|de|and|und|und|with|×|x))+$", re.IGNORECASE
)
_HEADING = re.compile(r"(?i)\b(?:date|datum|fecha|total|due)\b|تاريخ")
_NO_LABELS = {
    "to", "bis", "zum", "zur", "vom", "von", "al", "del", "hasta", "du", "au", "on", "in", "as", "at", "by", "for",
    "from", "since", "until", "after", "before", "during", "dated", "up", "and", "or", "the",
}  # fmt: skip
_NUMBERS_AT_END = re.compile(r"(?:\s+[-+]?[\d.,/%×x*]+)+$")


def label_before(document: Document, start: int, after: int, keywords: Mapping[str, str]) -> str | None:
    """The words that name the value at ``start``, not reaching back beyond ``after``; None when nothing does.

    In order: a label with a colon, a keyword in its sentence, words in front of it, a heading on the line above.
    """
    index = document.index_at(start)
    line = document.lines[index]
    before = document.text[max(line.start, after) : start]
    label = _in_front(before)
    if label and before.rstrip(" \t([{$€£-").endswith(":"):
        return label
    # Not beyond the value before: in a table the words further back belong to other cells.
    sentence = squeezed(document.text[max(0, after, start - _SENTENCE_CHARACTERS) : start]).lower()
    sentence = re.split(r"(?<=[a-z)])\.\s", sentence)[-1]
    for pattern, meaning in keywords.items():
        if re.search(pattern, sentence):
            return meaning
    if label is None and not before.strip(" \t([") and index > 0 and max(line.start, after) == line.start:
        return _alone(document.lines[index - 1].text)
    return label


def _in_front(before: str) -> str | None:
    text = _WEEKDAY.sub(" ", before).rstrip(" \t([{$€£-")
    if text.endswith(","):
        return None  # "Hamburg, 12 June": a place is no label
    had_colon = text.endswith(":")
    text = text.rstrip(":= ")
    pieces = _BREAK.split(text)
    label = cleaned(pieces[-1])
    if not label or (not had_colon and not _looks_like_a_label(label)):
        return None
    return label


def _looks_like_a_label(label: str) -> bool:
    words = label.split()
    return len(words) <= _MOST_WORDS and (words[0][0].isupper() or len(words) <= 2)


def _alone(line: str) -> str | None:
    text = line.strip()
    heading = _HEADING.search(text)
    if not text.endswith(":"):
        if heading is None:
            return None
        if len(text.split()) > 3:
            text = heading[0]
    label = cleaned(text.rstrip(": "))
    return label if label and len(label.split()) <= _MOST_WORDS else None


def cleaned(text: str) -> str | None:
    """A label without the numbers, articles and signs around it; None when no word is left."""
    label = squeezed(_NUMBERS_AT_END.sub("", f" {text}"))
    label = _TRAILING.sub("", _LEADING.sub("", label)).strip(" -–.,:;|()[]*#")
    if not re.search(r"[^\W\d_]\W?[^\W\d_]", label) or len(label) > _MOST_CHARACTERS or label.lower() in _NO_LABELS:
        return None
    return label
