"""Reading what a model said: JSON in any of the wrappings that models use, brought into the schema's shape.

Tolerated: code fences, prose around the object, more than one object (the first that has any of the fields),
fields that nobody asked for (left out), missing fields (null or empty), one item where a list is asked,
numbers as text and text as numbers, a value wrapped as {"value", "evidence"}. Everything else is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from services.document_agent.fields.schema import FieldSchema, is_list, types_of
from shared.contract.text import clean_json

_NUMBER_TYPES = frozenset({"number", "integer"})


def read_answer(text: str, schema: FieldSchema) -> tuple[dict[str, Any] | None, list[str]]:
    """The answer in the schema's shape and no faults, or None and what is wrong with it."""
    candidates = list(_objects(text))
    if not candidates:
        return None, ["the answer holds no JSON object"]
    found = next((each for each in candidates if set(each) & set(schema.fields)), None)
    if found is None:
        return None, [f"the answer has none of the fields {', '.join(schema.fields)}"]
    shaped = _shaped(found, schema)
    faults = schema.faults(shaped)
    return (None, faults) if faults else (shaped, [])


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start != -1:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        if isinstance(value, dict):
            yield clean_json(value)[0]
        start = text.find("{", end)


def _shaped(found: dict[str, Any], schema: FieldSchema) -> dict[str, Any]:
    quotes = found.get("evidence")
    quotes = quotes if isinstance(quotes, dict) else {}
    answer: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    for name, one in schema.fields.items():
        value = found.get(name)
        asked = schema.answer["properties"][name]
        if is_list(one):
            answer[name] = _items(value, asked["items"])
            continue
        quote = quotes.get(name)
        if isinstance(value, dict) and "value" in value and "properties" not in asked:
            value, quote = value["value"], value.get("evidence", quote)
        answer[name] = _object(value, asked) if "properties" in asked else _scalar(value, asked)
        evidence[name] = quote if isinstance(quote, str) else None
    return {**answer, "evidence": evidence} if evidence else answer


def _items(value: Any, item: dict[str, Any]) -> list[Any]:
    if value is None:
        return []
    many = value if isinstance(value, list) else [value]
    return [_object(each if isinstance(each, dict) else {"value": each}, item) for each in many if each is not None]


def _object(value: Any, schema: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _scalar(value.get(name), one) for name, one in schema["properties"].items()}


def _scalar(value: Any, schema: dict[str, Any]) -> Any:
    """The value as the type that is asked for, when that changes nothing about it."""
    kinds = set(types_of(schema))
    if "enum" in schema and isinstance(value, str):
        return next((each for each in schema["enum"] if str(each).casefold() == value.strip().casefold()), value)
    if isinstance(value, str):
        return _from_text(value.strip(), kinds)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and "string" in kinds and not kinds & _NUMBER_TYPES:
        return repr(value)
    return value


def _from_text(value: str, kinds: set[str]) -> Any:
    if value == "" or (value.casefold() in ("null", "n/a", "none", "unknown") and "null" in kinds):
        return None if "null" in kinds else value
    if "string" in kinds or not kinds & _NUMBER_TYPES:
        return value
    try:
        number = float(value.replace(",", "")) if "number" in kinds else int(value.replace(",", ""))
    except ValueError:
        return value
    return int(number) if number == int(number) and "integer" in kinds else number
