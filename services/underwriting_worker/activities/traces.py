"""Model calls in the same MLflow as the agents' traces, written beside the run and never in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import structlog

from services.underwriting_worker import metrics
from services.underwriting_worker.gateways import Answer
from services.underwriting_worker.settings import WorkerSettings
from services.underwriting_worker.storage import Attempt, UnderwritingStorage
from shared.agent_kit.settings import AgentSettings
from shared.agent_kit.spans import SpanRecord
from shared.agent_kit.traces import Trace, TraceIdentity
from shared.contract.errors import LockkeeperError

log = structlog.get_logger()

MOST_AT_ONCE = 4
_PREVIEW = 2_000


class CallTrace:
    """One model call on its way into a trace."""

    def __init__(self, span: SpanRecord | None) -> None:
        self._span = span

    def answered(self, answer: Answer) -> None:
        """What the model said, and what it used."""
        if self._span is None:
            return
        self._span.outputs = {"message": str(answer.message)[:_PREVIEW], "finish_reason": answer.finish_reason}
        self._span.attributes["mlflow.llm.model"] = answer.model
        if (usage := answer.usage) is not None:
            self._span.attributes["mlflow.chat.tokenUsage"] = {
                "input_tokens": usage.prompt_tokens,
                "output_tokens": usage.output_tokens,
                "total_tokens": usage.prompt_tokens + usage.output_tokens,
            }


class Traces:
    """Traces of this process. Without a tracking server, or when it lags, calls go untraced and are counted."""

    def __init__(self, storage: UnderwritingStorage, settings: WorkerSettings) -> None:
        self._storage = storage
        self._settings = AgentSettings.model_construct(
            tracking_uri=settings.tracking_uri,
            experiment=settings.experiment,
            agent_trace_wait_seconds=2,
            agent_trace_flush_seconds=20,
        )
        self._writing: set[asyncio.Task[None]] = set()

    @contextmanager
    def call(self, attempt: Attempt, run: Mapping[str, Any], prompt: list[dict[str, Any]]) -> Iterator[CallTrace]:
        """The trace of one call: its id is the message's, its tags name the run."""
        if not self._settings.tracking_uri or len(self._writing) >= MOST_AT_ONCE:
            if self._settings.tracking_uri:
                metrics.TRACES_DROPPED.inc()
            yield CallTrace(None)
            return
        tags = {"lockkeeper.run_id": str(attempt.run_id), "lockkeeper.turn": str(attempt.turn)}
        identity = TraceIdentity("underwriting", str(attempt.step_id), tags, {"purpose": run["purpose"]})
        trace = Trace(self._settings, identity)
        trace.start()
        failed: str | None = None
        try:
            with trace.span("model call", "CHAT_MODEL") as span:
                span.inputs = {"messages": len(prompt), "last": str(prompt[-1])[:_PREVIEW]}
                yield CallTrace(span)
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            task = asyncio.create_task(self._finish(trace, attempt.step_id, failed))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        """Give traces on their way a moment."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=2)

    async def _finish(self, trace: Trace, message: UUID, failed: str | None) -> None:
        state = await trace.finish(error=failed)
        if trace.trace_id is None or state == "unavailable":
            metrics.TRACES_DROPPED.inc()
            return
        try:
            await self._storage.set_trace(message, trace.trace_id)
        except LockkeeperError as error:
            log.info("set_trace_postponed", error=error.message)
