"""The MLflow trace of one attempt, written by a thread of its own so that nothing waits for the tracking server.

Three things of mlflow 3.17 shape this room, each seen with the real server:
the client asks `/version` once with a 3 s limit and remembers a failure for the life of the process, after
which spans go to artifact files and the cost stays empty, so the server is asked here first;
the asynchronous exporter sends spans and trace in any order (in seven of eight traces the cost was lost,
and one could not be read back) and its flush costs a whole second, so export is synchronous, in this thread;
tags set after the traced call may not find the trace, so ids are set when the trace starts.
Each span is sent when it ends: what a killed process had spent up to then is on record.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import structlog

from shared.agent_kit.settings import AgentSettings
from shared.agent_kit.spans import SpanRecord
from shared.contract.callback import TraceState

log = structlog.get_logger()

# Read by mlflow at its first use; the defaults (seven retries of 120 s each) outlast every lease.
_LIMITS = {
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # With a collector in the environment mlflow would send its traces there, and costs would have no source.
    "MLFLOW_ENABLE_OTLP_EXPORTER": "false",
    # Nor its own metrics: by default they want a package for gRPC, without which no span ends and no trace is stored.
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "none",
}
_SAYS_SO_FOR_EVERY_SPAN = "mlflow.tracing.processor.otel_metrics_mixin"
_answering: set[str] = set()


@dataclass(frozen=True, slots=True)
class TraceIdentity:
    """What the trace says about itself from its first moment."""

    name: str
    attempt_id: str
    tags: dict[str, str]
    inputs: dict[str, Any]


class Trace:
    """Records the steps of one attempt. Usable without a tracking server: then it says `unavailable`."""

    def __init__(self, settings: AgentSettings, identity: TraceIdentity) -> None:
        self._settings = settings
        self._identity = identity
        self._steps: queue.SimpleQueue[SpanRecord | None] = queue.SimpleQueue()
        self._ending = SpanRecord(identity.name, "AGENT")
        self._thread = threading.Thread(target=self._write, name="trace", daemon=True)
        self._begun = threading.Event()
        self.trace_id: str | None = None
        self._state: TraceState = "unavailable"

    def start(self) -> None:
        """Begin to write, when there is a tracking server to write to."""
        if self._settings.tracking_uri:
            self._thread.start()
        else:
            self._begun.set()

    async def known_id(self, limit_seconds: float) -> str | None:
        """The trace's id as soon as there is one, waiting no longer than this."""
        if not self._begun.is_set():
            await asyncio.to_thread(self._begun.wait, limit_seconds)
        return self.trace_id

    @contextmanager
    def span(self, name: str, kind: str = "UNKNOWN") -> Iterator[SpanRecord]:
        """A step that ends with the block; set `attributes`, `inputs`, `outputs` on it."""
        record = SpanRecord(name, kind)
        try:
            yield record
        except BaseException as error:
            record.error = type(error).__name__
            raise
        finally:
            self.add(record)

    def add(self, record: SpanRecord) -> None:
        """Hand over a finished step."""
        record.ended_ns = record.ended_ns or time.time_ns()
        self._steps.put(record)

    async def finish(self, *, outputs: dict[str, Any] | None = None, error: str | None = None) -> TraceState:
        """End the trace, wait a bounded time until it is stored, and say what is known about it.

        `stored` means that it was read back with its spans' ids; `unverified` that it was sent but not seen.
        """
        self._ending.outputs, self._ending.error = outputs, error
        self._ending.ended_ns = time.time_ns()
        self._steps.put(None)
        if not self._thread.is_alive():
            return self._state
        await asyncio.to_thread(self._thread.join, self._settings.agent_trace_flush_seconds)
        if self._thread.is_alive() and self.trace_id is not None:
            return "unverified"
        return self._state

    def _write(self) -> None:
        try:
            if not wait_until_answering(self._settings.tracking_uri, self._settings.agent_trace_wait_seconds):
                log.warning("trace_unavailable", reason="the tracking server does not answer")
                return
            self._write_spans()
        except Exception as error:  # noqa: BLE001 - tracing never fails an attempt
            log.warning("trace_incomplete", error=f"{type(error).__name__}: {error}"[:300])
        finally:
            self._begun.set()

    def _write_spans(self) -> None:
        os.environ.update({name: value for name, value in _LIMITS.items() if name not in os.environ})
        import mlflow

        logging.getLogger(_SAYS_SO_FOR_EVERY_SPAN).setLevel(logging.ERROR)
        mlflow.set_tracking_uri(self._settings.tracking_uri)
        experiment_id = _experiment(self._settings.tracking_uri, self._settings.experiment)
        root = mlflow.start_span_no_context(
            self._identity.name,
            span_type="AGENT",
            inputs=self._identity.inputs,
            tags=self._identity.tags,
            experiment_id=experiment_id,
            start_time_ns=self._ending.started_ns,
        )
        _set_client_request_id(root.trace_id, self._identity.attempt_id)
        self.trace_id = root.trace_id
        self._state = "unverified"
        self._begun.set()
        spans = 1
        while (step := self._steps.get()) is not None:
            child = mlflow.start_span_no_context(
                step.name, span_type=step.kind, parent_span=root, inputs=step.inputs,
                attributes=step.attributes, start_time_ns=step.started_ns,
            )  # fmt: skip
            child.end(outputs=step.outputs, status=_status(step), end_time_ns=step.ended_ns)
            spans += 1
        root.end(outputs=self._ending.outputs, status=_status(self._ending), end_time_ns=self._ending.ended_ns)
        if _is_stored(root.trace_id, self._identity.attempt_id):
            self._state = "stored"


def _status(step: SpanRecord) -> str:
    return "ERROR" if step.error else "OK"


def _set_client_request_id(trace_id: str, attempt_id: str) -> None:
    """Join the trace to its attempt while it is still in this process: no later call can miss it."""
    from mlflow.tracing.trace_manager import InMemoryTraceManager

    with InMemoryTraceManager.get_instance().get_trace(trace_id) as trace:
        if trace is not None:
            trace.info.client_request_id = attempt_id


def _is_stored(trace_id: str, attempt_id: str) -> bool:
    from mlflow.tracing.client import TracingClient

    info = TracingClient().get_trace_info(trace_id)
    return bool(info.client_request_id == attempt_id and info.state in ("OK", "ERROR"))


@lru_cache(maxsize=8)
def _experiment(tracking_uri: str, name: str) -> str:  # noqa: ARG001 - part of the key
    """The experiment's id, made at first use; two processes may make it at once and both get the one."""
    import mlflow

    try:
        return str(mlflow.set_experiment(name).experiment_id)
    except mlflow.exceptions.MlflowException:
        return str(mlflow.set_experiment(name).experiment_id)


def wait_until_answering(tracking_uri: str, limit_seconds: float) -> bool:
    """Whether the tracking server answers `/version` within the limit; remembered once it did."""
    if not tracking_uri.startswith(("http://", "https://")) or tracking_uri in _answering:
        return True
    give_up_at = time.monotonic() + limit_seconds
    while True:
        try:
            with urllib.request.urlopen(f"{tracking_uri.rstrip('/')}/version", timeout=2):  # noqa: S310 - http only
                _answering.add(tracking_uri)
                return True
        except OSError:
            if time.monotonic() >= give_up_at:
                return False
            time.sleep(0.2)
