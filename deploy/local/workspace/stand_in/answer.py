"""From a chat prompt to the JSON a schema asks for: the schema decides what is looked for and in which shape.

Properties the rules know by name: ``document_type``, ``parties``, ``dates``, ``amounts``, ``totals``, ``summary``
and ``evidence``; any other is looked up as a label. A schema that forbids further properties gets none, else
``model_note`` says what answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from deploy.local.workspace.stand_in.dates import find_dates
from deploy.local.workspace.stand_in.kinds import Quoted, find_kind, find_summary
from deploy.local.workspace.stand_in.labels import converted, find_labelled
from deploy.local.workspace.stand_in.money import Amount, find_amounts
from deploy.local.workspace.stand_in.parties import find_parties
from deploy.local.workspace.stand_in.text import Document

MODEL_NOTE = "rule-based stand-in, not a language model"
DEFAULT_PROPERTIES = ("document_type", "parties", "dates", "amounts", "totals", "summary", "evidence")
_DOCUMENT = re.compile(r"<document>\n?(.*?)\n?</document>", re.DOTALL)
_NO_DOCUMENT = f"I am a {MODEL_NOTE}: I only extract fields from a text between <document> and </document>."

Schema = Mapping[str, Any]


def answer(messages: Sequence[Mapping[str, Any]], response_format: Mapping[str, Any]) -> str:
    """The content of the assistant's message."""
    text = _document_text(messages)
    if text is None:
        return _NO_DOCUMENT
    declared = (response_format.get("json_schema") or {}).get("schema")
    schema: Schema = declared or {"type": "object", "properties": {name: {} for name in DEFAULT_PROPERTIES}}
    return orjson.dumps(extracted(text, schema)).decode()


def extracted(text: str, schema: Schema) -> dict[str, Any]:
    """Everything the schema asks for that stands in the text."""
    reader = _Reader(Document(text))
    found = {
        name: reader.value(name, _resolved(one, schema), schema)
        for name, one in (schema.get("properties") or {}).items()
        if name not in {"evidence", "model_note"}
    }
    required = set(schema.get("required") or [])
    answered = {name: value for name, value in found.items() if value is not None or name in required or not required}
    allowed = schema.get("properties") or {}
    if "evidence" in allowed:
        answered["evidence"] = _fitted(reader.evidence, _resolved(allowed["evidence"], schema), schema)
    if "model_note" in allowed or schema.get("additionalProperties", True) is not False:
        answered["model_note"] = MODEL_NOTE
    return answered


class _Reader:
    """Finds the value of a property; remembers the quotes of those that cannot carry their own."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._amounts: list[Amount] | None = None
        self.evidence: dict[str, str] = {}
        self._known: dict[str, Callable[[], object]] = {
            "document_type": lambda: self._quoted("document_type", find_kind(document)),
            "summary": lambda: self._quoted("summary", find_summary(document)),
            "parties": self._parties,
            "dates": self._dates,
            "amounts": lambda: self._sums(totals=False),
            "totals": lambda: self._sums(totals=True),
        }

    def value(self, name: str, schema: Schema, root: Schema) -> object:
        """The value of one property in the shape its schema wants, or nothing."""
        find = self._known.get(name)
        kind = _type_of(schema)
        if find is not None and kind in {"array", "object", "string", ""}:
            found = find()
            if isinstance(found, list) != (kind == "array") and kind:
                found = None if isinstance(found, list) else {"value": found, "evidence": self.evidence.get(name)}
            return _fitted(found, schema, root)
        return self._labelled(name, schema, kind)

    def _labelled(self, name: str, schema: Schema, kind: str) -> object:
        if kind == "array":
            return []
        if kind == "object":
            inner = {key: self._labelled(key, one, _type_of(one)) for key, one in schema.get("properties", {}).items()}
            return inner if any(value is not None for value in inner.values()) else None
        titles = [name, *([schema["title"]] if isinstance(schema.get("title"), str) else [])]
        found = find_labelled(self._document, titles)
        if found is None:
            return None
        value = converted(found.text, kind, schema.get("format"), self._document)
        options = schema.get("enum")
        if options is not None:
            value = next((one for one in options if str(one).lower() == str(value).lower()), None)
        if value is not None:
            self.evidence[name] = found.evidence
        return value

    def _quoted(self, name: str, found: Quoted | None) -> str | None:
        if found is None:
            return None
        self.evidence[name] = found.evidence
        return found.value

    def _parties(self) -> list[dict[str, Any]]:
        return [
            {"name": one.name, "role": one.role, "evidence": self._document.quote(one.start, one.end)}
            for one in find_parties(self._document)
        ]

    def _dates(self) -> list[dict[str, Any]]:
        return [
            {"label": one.label or "date", "date": one.day.isoformat(), "evidence": self._around(one.start, one.end)}
            for one in find_dates(self._document)
        ]

    def _sums(self, *, totals: bool) -> list[dict[str, Any]]:
        if self._amounts is None:
            self._amounts = find_amounts(self._document)
        return [
            {
                "label": one.label or ("total" if totals else "amount"),
                "value": format(one.value, "f"),
                "currency": one.currency,
                "evidence": self._around(one.start, one.end),
            }
            for one in self._amounts
            if one.is_total == totals
        ]

    def _around(self, start: int, end: int) -> str:
        """The whole line or lines of a value; of a very long line only the value itself."""
        first, last = self._document.index_at(start), self._document.index_at(end - 1)
        quote = self._document.quote_line(first, last - first + 1)
        value = self._document.quote(start, end)
        return quote if value in quote else value


def _document_text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The last document in the prompt."""
    for message in reversed(messages):
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        found = _DOCUMENT.findall(content or "")
        if found:
            return str(found[-1])
    return None


def _resolved(schema: object, root: Schema) -> Schema:
    """A schema with its reference followed and, of several alternatives, the one that is not null."""
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        return _resolved((root.get("$defs") or {}).get(reference.removeprefix("#/$defs/")), root)
    for several in ("anyOf", "oneOf"):
        for one in schema.get(several) or []:
            if isinstance(one, Mapping) and one.get("type") != "null":
                return {**_resolved(one, root), **{key: schema[key] for key in ("title",) if key in schema}}
    return schema


def _type_of(schema: Schema) -> str:
    kind = schema.get("type", "")
    if isinstance(kind, list):
        return next((str(one) for one in kind if one != "null"), "")
    return str(kind)


def _fitted(value: object, schema: Schema, root: Schema) -> object:
    """The value without what the schema forbids, with null for what it requires and nobody found."""
    if isinstance(value, list):
        items = _resolved(schema.get("items"), root)
        return [_fitted(one, items, root) for one in value]
    if isinstance(value, Mapping):
        properties = schema.get("properties") or {}
        closed = schema.get("additionalProperties", True) is False
        kept = {
            key: _fitted(one, _resolved(properties.get(key), root), root)
            for key, one in value.items()
            if key in properties or not closed
        }
        return {**dict.fromkeys(schema.get("required") or []), **kept}
    if isinstance(value, str) and _type_of(schema) == "number":
        return float(value)
    return value
