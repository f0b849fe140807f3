"""The pipeline of one document, put together: read its pages, ask the model, weigh the answer, report."""

from __future__ import annotations

from pathlib import Path

from services.document_agent.fields.extract import Extraction, FieldReader
from services.document_agent.fields.schema import FieldSchema, field_schema, is_list
from services.document_agent.messages import Header, Page
from services.document_agent.pages.sandbox import pool, reading
from services.document_agent.report import Reading, build_result, confidences, page_confidence
from services.document_agent.settings import DocumentAgentOptions, DocumentAgentSettings, read_options
from shared.agent_kit import AgentContext, AgentResult
from shared.agent_kit.spans import SpanRecord

_MOST_PAGE_SPANS = 20


async def read_document(context: AgentContext) -> AgentResult:
    """The handler of the document agent: one document to one result."""
    settings = DocumentAgentSettings()
    schema, options = field_schema(context.options), read_options(context.options)
    async with context.open_document(settings.file_limit_bytes) as path:
        document = await _read_pages(context, path, settings)
    extraction = await _read_fields(context, document, schema, settings, options)
    confidence = confidences(document, extraction)
    return AgentResult(
        build_result(document, extraction, confidence, settings),
        confidence=confidence["document"],
        pages=document.header.pages,
        damage=document.damage,
        cleaned_characters=document.cleaned,
    )


async def _read_pages(context: AgentContext, path: Path, settings: DocumentAgentSettings) -> Reading:
    context.heartbeat(step="reading")
    async with reading(settings) as child:
        header = await child.header(path)
        document = Reading(header)
        spans = _PageSpans(context, header)
        context.heartbeat(0, header.pages, "reading")
        async for page in child.pages(header.pages):
            document.pages.append(page)
            spans.add(page)
            context.heartbeat(page.number, header.pages, "reading")
    spans.flush()
    return document


async def _read_fields(
    context: AgentContext,
    document: Reading,
    schema: FieldSchema,
    settings: DocumentAgentSettings,
    options: DocumentAgentOptions,
) -> Extraction:
    """The fields; a document without any readable text is empty, and no model is asked to imagine some."""
    if not document.has_text:
        return Extraction({name: [] if is_list(one) else None for name, one in schema.fields.items()})
    return await FieldReader(context, schema, settings, options).read(document.pages)


class _PageSpans:
    """One span for each page of a short document, one for a run of pages of a long one: never more than twenty."""

    def __init__(self, context: AgentContext, header: Header) -> None:
        self._context = context
        self._size = -(-header.pages // _MOST_PAGE_SPANS)
        self._pages: list[Page] = []
        self._span = SpanRecord("pages", "PARSER")

    def add(self, page: Page) -> None:
        """Count a page in."""
        self._pages.append(page)
        if len(self._pages) >= self._size:
            self.flush()

    def flush(self) -> None:
        """Hand over the span of the pages so far; the next one begins now."""
        if self._pages:
            self._span.name = _span_name(self._pages)
            self._span.attributes = _facts(self._pages)
            self._context.trace.add(self._span)
        self._pages = []
        self._span = SpanRecord("pages", "PARSER")


def _span_name(pages: list[Page]) -> str:
    first, last = pages[0].number, pages[-1].number
    return f"page {first}" if first == last else f"pages {first}-{last}"


def _facts(pages: list[Page]) -> dict[str, object]:
    return {
        "methods": sorted({page.method for page in pages}),
        "characters": sum(len(page.text) for page in pages),
        "tables": sum(len(page.tables) for page in pages),
        "lowest_confidence": round(min(map(page_confidence, pages)), 3),
        "turned": sum(page.turned != 0 for page in pages),
        "parse_seconds": round(sum(page.seconds for page in pages), 3),
        "notes": [note for page in pages for note in page.notes][:10],
    }


def warm_up() -> None:
    """Start the child process that reads PDFs, so that the first document finds it ready."""
    pool.warm_up()
