"""One trace per task across all processes, without a word between them.

Nobody hands a trace context around: the trace's id *is* the task's id, and a span's id is worked out from its
stage and the attempt. Whoever has the row or the job's parameters has the context, so that neither the queue's
statements nor the callbacks carry anything for it. Off, it costs the comparison with None, and nothing of
OpenTelemetry is loaded.

`OTEL_EXPORTER_OTLP_ENDPOINT` (with the exporter's other standard settings) turns it on, and
`OTEL_TRACES_SAMPLER_ARG` keeps a share of the tasks; every process keeps the same ones.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING
from uuid import UUID

from shared.contract.stages import Stage

if TYPE_CHECKING:
    from shared.runtime.spans import Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SHARE = "OTEL_TRACES_SAMPLER_ARG"
Value = str | int | float | bool

_tracer: Tracer | None = None


def configure(service: str, replica: str) -> None:
    """Turn tracing on where the environment names a collector."""
    global _tracer  # noqa: PLW0603 - one per process, as the exporter's settings are
    if _tracer is None and os.environ.get(ENDPOINT):
        from shared.runtime.spans import Tracer

        _tracer = Tracer(service, replica, float(os.environ.get(SHARE, "1")))


def close() -> None:
    """Send what is left and turn it off. Blocks for as long as the exporter's time limit."""
    global _tracer
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.close()


def record(
    stage: Stage, task: UUID | None, attempt: UUID | None = None, *, seconds: float = 0.0, failure: str | None = None,
    **attributes: Value,
) -> None:  # fmt: skip
    """A stage of the task ends now and took so many seconds; `failure` says why it did not go well."""
    if _tracer is not None and task is not None:
        now = time.time()
        _tracer.record(stage, task, attempt, span=(now - seconds, now), failure=failure, attributes=attributes)


def exemplar(task: UUID) -> dict[str, str] | None:
    """What ties an observation to a trace that is kept; None leaves it alone."""
    return {"trace_id": task.hex} if _tracer is not None and _tracer.keeps(task) else None
