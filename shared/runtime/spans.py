"""Spans as OpenTelemetry's own exporter takes them. Loaded only where tracing is on."""

from __future__ import annotations

from uuid import UUID

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from shared.contract.stages import Stage, span_id

_RANDOM_BITS = 62
"""The last bits of a task's id are random; those before them are its time and version."""


class Tracer:
    """Hands finished spans to the exporter's own thread; a collector that is away costs dropped spans, nothing else."""

    def __init__(self, service: str, replica: str, share: float) -> None:
        self._bound = int(share * (1 << _RANDOM_BITS))
        self._resource = Resource.create(
            {"service.namespace": "lockkeeper", "service.name": service, "service.instance.id": replica}
        )
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    def keeps(self, task: UUID) -> bool:
        """Whether this task is one of the share."""
        return (task.int & ((1 << _RANDOM_BITS) - 1)) < self._bound

    def record(
        self, stage: Stage, task: UUID, attempt: UUID | None, *, span: tuple[float, float], failure: str | None,
        attributes: dict[str, str | int | float | bool],
    ) -> None:  # fmt: skip
        """Send one span, from and to these seconds since 1970."""
        if not self.keeps(task):
            return
        ids = {"lockkeeper.task_id": str(task)} | ({} if attempt is None else {"lockkeeper.attempt_id": str(attempt)})
        status = Status(StatusCode.OK) if failure is None else Status(StatusCode.ERROR, failure)
        began, ended = span
        made = ReadableSpan(
            stage.name, _context(stage, task, attempt), resource=self._resource, status=status,
            parent=None if stage.parent is None else _context(stage.parent, task, attempt),
            attributes={**ids, **attributes}, kind=SpanKind[stage.kind], start_time=int(began * 1e9),
            end_time=int(max(began, ended) * 1e9),
        )  # fmt: skip
        self._processor.on_end(made)

    def close(self) -> None:
        """Send what is left. Blocks for as long as the exporter's time limit."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _context(stage: Stage, task: UUID, attempt: UUID | None) -> SpanContext:
    number = span_id(stage, task, attempt)
    return SpanContext(task.int, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
