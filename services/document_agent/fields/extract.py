"""The model step: asks for the fields of each part of the document, keeps what stands in it, and merges the parts.

No value is invented: what has no evidence, whose evidence does not stand in the document, or which
contradicts its own evidence is dropped and counted, never stored.

Merging, over the parts in order: a single field is the surest value that any part gave, the earliest when
equally sure; a summary is the first one. Lists are put one after the other, the same item kept once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.document_agent.fields import prompt
from services.document_agent.fields.answers import read_answer
from services.document_agent.fields.chunks import Chunk, chunks_of, halves_of, selected
from services.document_agent.fields.evidence import DocumentIndex
from services.document_agent.fields.judging import Dropped, Judge, Value
from services.document_agent.fields.schema import FieldSchema, is_list
from services.document_agent.messages import Page
from services.document_agent.settings import DocumentAgentOptions, DocumentAgentSettings
from shared.agent_kit import AgentContext, RejectedError

_ASKS = 2
_ANSWER_TOKENS = 8_000


@dataclass(slots=True)
class Extraction:
    """Everything the model step found. `dropped` says what was not believed and why."""

    fields: dict[str, Value | list[Value] | None]
    dropped: Dropped = field(default_factory=Dropped)
    unread_pages: list[int] = field(default_factory=list)
    calls: int = 0

    @property
    def kept_count(self) -> int:
        """How many values are stored."""
        return sum(len(each) if isinstance(each, list) else each is not None for each in self.fields.values())


class FieldReader:
    """Reads the fields of one document with the attempt's model."""

    def __init__(
        self, context: AgentContext, schema: FieldSchema, settings: DocumentAgentSettings, options: DocumentAgentOptions
    ) -> None:
        self._context = context
        self._schema = schema
        self._chunk_characters = options.chunk_characters or settings.chunk_characters
        self._model_calls = settings.model_calls
        self._model = options.model
        asked = {
            "temperature": 0,
            "max_tokens": _ANSWER_TOKENS,
            "response_format": prompt.response_format(schema),
            **options.model_options,
        }
        self._call_options = {name: value for name, value in asked.items() if value is not None}

    async def read(self, pages: Sequence[Page]) -> Extraction:
        """The fields of these pages. Raises RejectedError `model_answer_invalid` and what the model client raises."""
        result = Extraction({name: [] if is_list(one) else None for name, one in self._schema.fields.items()})
        chunks = chunks_of([(page.number, page.text) for page in pages], self._chunk_characters)
        chosen, result.unread_pages = selected(chunks, self._model_calls)
        index = DocumentIndex(pages)
        for number, chunk in enumerate(chosen, start=1):
            self._context.heartbeat(step=f"fields, part {number} of {len(chosen)}" if len(chosen) > 1 else "fields")
            for part, answer, asks in await self._answers(chunk, number, len(chosen), result):
                self._merge(result, answer, Judge(index, part.pages, asks, result.dropped))
        return result

    async def _answers(
        self, chunk: Chunk, number: int, parts: int, result: Extraction, depth: int = 0
    ) -> list[tuple[Chunk, dict[str, Any], int]]:
        """The answer for a part; a part whose answer was cut off is read again as two halves."""
        asked = prompt.messages(chunk, self._schema, part=number, parts=parts)
        faults: list[str] = []
        for ask in range(1, _ASKS + 1):
            answer = await self._context.model.complete(
                asked, step=f"fields {number}", model=self._model, **self._call_options
            )
            result.calls += 1
            shaped, faults = read_answer(answer.text, self._schema)
            if shaped is not None:
                return [(chunk, shaped, ask)]
            halves = halves_of(chunk)
            if answer.finish_reason == "length" and len(halves) == 2 and depth < 3:
                both = [await self._answers(half, number, parts, result, depth + 1) for half in halves]
                return [each for half in both for each in half]
            asked = [*asked, *prompt.again(answer.text, faults)]
        raise RejectedError(
            f"the model's answer could not be used, also when asked again: {'; '.join(faults)}"[:1_000],
            reason="model_answer_invalid",
        )

    def _merge(self, result: Extraction, answer: dict[str, Any], judge: Judge) -> None:
        quotes = answer.get("evidence") or {}
        for name, schema in self._schema.fields.items():
            known = result.fields[name]
            if is_list(schema):
                values = known if isinstance(known, list) else []
                for each in answer[name]:
                    value = judge.item(name, each, schema.get("items") or {})
                    if value is not None and not any(_same(value, other) for other in values):
                        values.append(value)
                result.fields[name] = values
            else:
                value = judge.single(name, answer[name], quotes.get(name), schema)
                if value is not None and (
                    not isinstance(known, Value) or (name != "summary" and value.confidence > known.confidence)
                ):
                    result.fields[name] = value


def _same(one: Value, other: Value) -> bool:
    """The same item: an equal value quoted from the same words; a sum that occurs twice in a document stays two."""
    return bool(one.value == other.value and (one.evidence == other.evidence or one.page != other.page))
