"""Fields no rule knows by name: a property is looked up as a label in the document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.local.workspace.stand_in.dates import first_date
from deploy.local.workspace.stand_in.money import parse_number, writes_comma_decimals
from deploy.local.workspace.stand_in.text import Document, squeezed

_NUMBER_WORD = r"(?:number|no\.?|nr\.?|num\.?|nummer|n[.º°]+|id|#)"
_NUMBER_WORDS = frozenset({"number", "no", "nr", "id", "nummer"})
_NUMBER = re.compile(r"-?\d[\d.,'\u00a0]*")
_YES = re.compile(r"(?i)(?:yes|true|ja|sí|oui|x|✓|☒)\b")
_NO = re.compile(r"(?i)(?:no|false|nein|non)\b")
_LONGEST_VALUE = 300


@dataclass(frozen=True, slots=True)
class Labelled:
    """What stands behind a label."""

    text: str
    evidence: str


def find_labelled(document: Document, names: Sequence[str]) -> Labelled | None:
    """The value of the first of these labels that the document has; on its line, else on the next one."""
    for name in names:
        words = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).replace("_", " ").replace("-", " ").lower().split()
        if not words:
            continue
        pattern = r"[\s_-]*".join(_NUMBER_WORD if word in _NUMBER_WORDS else re.escape(word) for word in words)
        label = re.compile(rf"(?i)(?:^|\s{{2,}}|[|;,]\s*)(?:the\s+)?{pattern}\s*(?P<sign>[:#=]|\s{{2,}}|$|(?=\s\S))")
        for index, line in enumerate(document.lines):
            match = label.search(line.text)
            if match is None:
                continue
            value = squeezed(re.split(r"\s{3,}|\t|\|", line.text[match.end() :].strip(" :#=.\t"))[0])
            strong = match["sign"].strip() != ""
            if value and (strong or len(value.split()) <= 3):
                return Labelled(value[:_LONGEST_VALUE], document.quote_line(index))
            if not value and index + 1 < len(document.lines) and not document.lines[index + 1].text.endswith(":"):
                text = squeezed(document.lines[index + 1].text)[:_LONGEST_VALUE]
                return Labelled(text, document.quote_line(index, 2))
    return None


def converted(text: str, schema_type: str, schema_format: str | None, document: Document) -> object:
    """The text as the schema's type wants it; None when it is not of that type."""
    if schema_format in {"date", "date-time"}:
        day = first_date(text)
        return None if day is None else day.isoformat()
    if schema_type in {"number", "integer"}:
        match = _NUMBER.search(text)
        if match is None:
            return None
        value = parse_number(match[0].rstrip(".,'"), comma_decimals=writes_comma_decimals(document.text))
        return int(value) if value == int(value) else (float(value) if schema_type == "number" else None)
    if schema_type == "boolean":
        return True if _YES.match(text) else (False if _NO.match(text) else None)
    return text
