"""Whether an answered value is believed: it is stored with its evidence, or dropped and counted with the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.document_agent.confidence import value_confidence
from services.document_agent.fields.evidence import DocumentIndex, agreement
from services.document_agent.fields.schema import kind_of, leaves

_DROPPED_KEPT = 50


@dataclass(frozen=True, slots=True)
class Value:
    """One value that stands in the document."""

    value: Any
    evidence: str
    page: int
    confidence: float

    def as_json(self) -> dict[str, Any]:
        """The value as it is stored."""
        confidence = round(self.confidence, 3)
        return {"value": self.value, "evidence": self.evidence, "page": self.page, "confidence": confidence}


@dataclass(slots=True)
class Dropped:
    """What was not believed: all of it counted, the first fifty kept to be looked at."""

    count: int = 0
    kept: list[dict[str, Any]] = field(default_factory=list)

    def add(self, path: str, value: Any, why: str) -> None:
        """Count a value that is not stored."""
        self.count += 1
        if len(self.kept) < _DROPPED_KEPT:
            shown = json.dumps(value, ensure_ascii=False)[:300]
            self.kept.append({"field": path, "value": shown, "reason": why})


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the values of one answer. `pages` are those that the model was shown, `asks` how often it was asked."""

    index: DocumentIndex
    pages: Sequence[int]
    asks: int
    dropped: Dropped

    def single(self, name: str, answered: Any, quote: str | None, schema: dict[str, Any]) -> Value | None:
        """The value of a field that has one; None when there is none or it is dropped."""
        if "properties" in schema and isinstance(answered, dict):
            return self._believed(name, answered, quote, schema)
        return self._believed(name, {name: answered}, quote, schema)

    def item(self, name: str, answered: dict[str, Any], schema: dict[str, Any]) -> Value | None:
        """One item of a list; it carries its own evidence."""
        parts = {key: each for key, each in answered.items() if key != "evidence"}
        if "properties" not in schema:
            parts = {name: parts.get("value")}
        return self._believed(name, parts, answered.get("evidence"), schema)

    def _believed(self, name: str, parts: dict[str, Any], quote: str | None, schema: dict[str, Any]) -> Value | None:
        kinds = {key: kind_of(key, one) for key, one in leaves(name, schema)}
        said = [key for key, each in parts.items() if each is not None]
        main = [key for key in said if kinds.get(key) not in ("derived", "currency")]
        if not said or (not main and len(kinds) > 1):
            return None
        shown = parts if "properties" in schema else parts[name]
        if not quote:
            self.dropped.add(name, shown, "no evidence was given")
            return None
        found = self.index.find(quote, self.pages)
        if found is None:
            self.dropped.add(name, shown, "its evidence does not stand in the document")
            return None
        degrees = {key: agreement(kinds.get(key, "text"), parts[key], quote, self.index) for key in said}
        if any(degrees[key] == 0 for key in said if kinds.get(key) != "currency"):
            self.dropped.add(name, shown, "it contradicts its evidence")
            return None
        kept = dict(parts)
        for key in [key for key in said if degrees[key] == 0]:
            self.dropped.add(f"{name}.{key}", parts[key], "the document names no such currency")
            kept[key] = None
        counting = [degrees[key] for key in said if degrees[key] > 0 and (key in main or len(kinds) == 1)]
        confidence = value_confidence(
            literal=found.literal, source=found.source, agreement=min(counting, default=0.0), asks=self.asks
        )
        return Value(kept if "properties" in schema else kept[name], quote, found.page, confidence)
