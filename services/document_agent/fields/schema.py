"""The fields that are looked for: the default schema, and the shape of the answer that the model is asked for.

An operator gives an agent its own fields as a JSON schema of an object in `options.schema`. In what the model
must answer, every list item carries an `evidence`, a literal quote, and single values have theirs in a map
`evidence` beside them. `x-derived` marks a value that sums the document up instead of standing in it
(a type, a role, a summary): its evidence must stand in the document, the value need not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from shared.contract.errors import RejectedError

_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_LABEL: dict[str, Any] = {**_TEXT, "description": "what the document calls it", "x-derived": True}
_SUM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": _LABEL,
        "value": {"type": ["string", "null"], "description": "decimal, point before cents", "x-kind": "amount"},
        "currency": {"type": ["string", "null"], "description": "ISO 4217, null when not named", "x-kind": "currency"},
    },
}

DEFAULT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "document_type": {**_TEXT, "description": "its kind, in one or two words", "x-derived": True},
        "parties": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": _TEXT, "role": {**_TEXT, "x-derived": True}},
            },
        },
        "dates": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"label": _LABEL, "date": {**_TEXT, "description": "YYYY-MM-DD", "x-kind": "date"}},
            },
        },
        "amounts": {"type": "array", "description": "sums of money that are not totals, at most 50", "items": _SUM},
        "totals": {"type": "array", "description": "sums that the document itself calls totals", "items": _SUM},
        "summary": {**_TEXT, "description": "two sentences", "x-derived": True},
    },
}

_KEPT = frozenset(
    {"type", "properties", "items", "required", "enum", "description", "title", "format", "anyOf", "$ref", "$defs"}
)


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """The fields of one agent, and what the model must answer."""

    fields: dict[str, dict[str, Any]]
    answer: dict[str, Any]

    @property
    def single(self) -> list[str]:
        """Names of the fields that hold one value."""
        return [name for name, one in self.fields.items() if not is_list(one)]

    def faults(self, answer: dict[str, Any]) -> list[str]:
        """What is wrong with an answer, in words that a model understands; nothing when it fits."""
        errors = Draft202012Validator(self.answer).iter_errors(answer)
        return [f"{'.'.join(map(str, each.absolute_path)) or 'answer'}: {each.message[:200]}" for each in errors][:5]


def field_schema(options: dict[str, Any]) -> FieldSchema:
    """The schema of an agent with these options. Raises RejectedError for one that cannot be used."""
    schema = options.get("schema") or DEFAULT_SCHEMA
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(fields, dict) or not fields or not all(isinstance(each, dict) for each in fields.values()):
        raise RejectedError("the agent's schema must describe an object with properties", reason="schema_invalid")
    if "evidence" in fields:
        raise RejectedError("a field of the agent's schema cannot be called evidence", reason="schema_invalid")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise RejectedError(f"the agent's schema is not valid: {error.message}", reason="schema_invalid") from error
    return FieldSchema(fields, _answer_schema(fields, schema.get("$defs")))


def is_list(schema: dict[str, Any]) -> bool:
    """Whether a field holds many values."""
    return "array" in types_of(schema)


def types_of(schema: dict[str, Any]) -> list[str]:
    """The JSON types that a schema names."""
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def kind_of(name: str, schema: dict[str, Any]) -> str:
    """How a value is compared with its evidence: derived, amount, number, date, currency or text."""
    if schema.get("x-derived"):
        return "derived"
    if kind := schema.get("x-kind"):
        return str(kind)
    if schema.get("format") in ("date", "date-time"):
        return "date"
    if {"number", "integer"} & set(types_of(schema)):
        return "number"
    if "boolean" in types_of(schema) or schema.get("enum"):
        return "derived"
    return "currency" if name == "currency" else "text"


def leaves(name: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The plain values inside a field or item: (name, schema), the field itself when it is plain."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        yield name, schema
        return
    for key, one in properties.items():
        if isinstance(one, dict):
            yield key, one


def _answer_schema(fields: dict[str, dict[str, Any]], definitions: Any) -> dict[str, Any]:
    properties = {name: _asked(one) for name, one in fields.items()}
    single = [name for name, one in fields.items() if not is_list(one)]
    if single:
        quotes = {name: {"type": ["string", "null"]} for name in single}
        properties["evidence"] = _closed({"type": "object", "properties": quotes})
    answer = _closed({"type": "object", "properties": properties})
    return {**answer, "$defs": definitions} if definitions else answer


def _asked(schema: dict[str, Any]) -> dict[str, Any]:
    if is_list(schema):
        items = schema.get("items")
        item = _plain(items if isinstance(items, dict) else {"type": "string"})
        quote = {"evidence": {"type": ["string", "null"], "description": "literal quote from the document"}}
        if "properties" in item:
            item = _closed({**item, "properties": {**item["properties"], **quote}})
        else:
            item = _closed({"type": "object", "properties": {"value": item, **quote}})
        return {**_plain({key: each for key, each in schema.items() if key != "items"}), "type": "array", "items": item}
    plain = _plain(schema)
    kinds = types_of(plain)
    if kinds and "null" not in kinds:
        plain["type"] = [*kinds, "null"]
        if "enum" in plain:
            plain["enum"] = [*plain["enum"], None]
    return plain


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the keywords that endpoints refuse; objects closed, as strict answers want them."""
    kept = {key: each for key, each in schema.items() if key in _KEPT}
    if isinstance(kept.get("properties"), dict):
        kept["properties"] = {name: _plain(each) for name, each in kept["properties"].items()}
        kept = _closed(kept)
    if isinstance(kept.get("items"), dict):
        kept["items"] = _plain(kept["items"])
    return kept


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "additionalProperties": False, "required": list(schema["properties"])}
