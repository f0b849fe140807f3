"""The one cleaner of text that comes from outside: what Postgres and UTF-8 cannot hold is taken out and counted.

Fonts without a proper character map give U+0000 and halves of surrogate pairs, file names and model
answers carry them too. Postgres refuses both in text and jsonb, for ever, so they are removed where text
enters the system and nowhere later. Two halves that belong together are joined and not counted.
"""

from __future__ import annotations

import math
import re
from typing import Any

_PAIR = re.compile("([\ud800-\udbff])([\udc00-\udfff])")
_REFUSED = re.compile("[\x00\ud800-\udfff]")


def _join(pair: re.Match[str]) -> str:
    return chr(0x10000 + ((ord(pair[1]) - 0xD800) << 10) + (ord(pair[2]) - 0xDC00))


def clean_text(value: str) -> tuple[str, int]:
    """The text with split surrogate pairs joined and U+0000 and lone surrogates dropped, and how many were dropped."""
    if _REFUSED.search(value) is None:
        return value, 0
    return _REFUSED.subn("", _PAIR.sub(_join, value))


def clean_json(value: Any) -> tuple[Any, int]:
    """The same for every string and key inside a JSON value; NaN and infinities become null and count as one each."""
    match value:
        case str():
            return clean_text(value)
        case float() if not math.isfinite(value):
            return None, 1
        case dict():
            return _clean_object(value)
        case list() | tuple():
            pairs = [clean_json(each) for each in value]
            return [each for each, _ in pairs], sum(dropped for _, dropped in pairs)
        case _:
            return value, 0


def _clean_object(value: dict[Any, Any]) -> tuple[dict[str, Any], int]:
    cleaned: dict[str, Any] = {}
    total = 0
    for key, each in value.items():
        name, in_key = clean_text(str(key))
        cleaned[name], in_value = clean_json(each)
        total += in_key + in_value
    return cleaned, total
