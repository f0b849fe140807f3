"""Token usage and cost of traces, read from an MLflow tracking server by the real client, off the event loop.

Only trace information is read, never spans: the totals in a trace's metadata count each model call once,
while adding up spans counts a call again in each parent that carries the sum of its children. Whatever is
missing or malformed in one trace is unknown there, and harms no other.

The client costs seconds of processor time to import, so that happens at the first use, in a thread that
stands behind everything else on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from shared.contract.errors import TransientError

Result = TypeVar("Result")

IDS_PER_SEARCH = 100
NICENESS = 10
CALL_SECONDS = 120.0

_ENDED = frozenset({"OK", "ERROR"})
_ID = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")
# Read by mlflow at its first use; its defaults (seven retries of two minutes each) outlast every deadline.
_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What one trace says of its usage. The four counters are disjoint; None is unknown, never zero."""

    trace_id: str
    client_request_id: str | None
    is_ended: bool
    started_at: datetime | None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: Decimal | None = None
    """US dollars, as the tracing client or the server worked them out."""

    @property
    def has_usage(self) -> bool:
        """Whether the trace knows what was used."""
        return self.input_tokens is not None and self.output_tokens is not None


class TraceReader:
    """Finds the traces of attempts in the named experiments of one tracking server."""

    def __init__(self, tracking_uri: str, experiments: Sequence[str]) -> None:
        self._uri = tracking_uri
        self._experiments = tuple(experiments)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="traces", initializer=_stand_back)
        self._client: Any = None
        self._ids: dict[str, str] = {}

    async def find(self, attempt_ids: Sequence[str], trace_ids: Sequence[str]) -> list[TraceFacts]:
        """The traces that name one of these attempts as their client request, or have one of these ids; each once.

        At most IDS_PER_SEARCH of either. Raises TransientError while the server cannot be asked; an experiment
        that does not exist yet has no traces.
        """
        return await self._call(lambda: self._find(attempt_ids, trace_ids))

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _call(self, work: Callable[[], Result]) -> Result:
        future = asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._guarded(work))
        try:
            return await asyncio.wait_for(asyncio.shield(future), CALL_SECONDS)
        except TimeoutError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise TransientError("the tracking server did not answer in time", reason="deadline") from None

    def _guarded(self, work: Callable[[], Result]) -> Result:
        try:
            if self._client is None:
                self._client = self._connect()
            return work()
        except TransientError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:300]
            raise TransientError(f"the tracking server cannot be asked: {said}", reason="unreachable") from error

    def _connect(self) -> Any:
        if self._uri.startswith(("http://", "https://")):
            # The client remembers for ever that a server did not answer; so it first meets one that does.
            try:
                with urllib.request.urlopen(f"{self._uri.rstrip('/')}/version", timeout=3):  # noqa: S310 - http only
                    pass
            except OSError as error:
                raise TransientError(f"the tracking server does not answer: {error}", reason="unreachable") from error
        os.environ.update({name: value for name, value in _LIMITS.items() if name not in os.environ})
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._uri)

    def _find(self, attempt_ids: Sequence[str], trace_ids: Sequence[str]) -> list[TraceFacts]:
        found: dict[str, TraceFacts] = {}
        for name in self._experiments:
            experiment = self._experiment(name)
            if experiment is None:
                continue
            wanted = set(attempt_ids)
            for facts in self._search(experiment, "attributes.client_request_id", attempt_ids):
                found[facts.trace_id] = facts
                wanted.discard(facts.client_request_id or "")
            missing = [each for each in trace_ids if each not in found]
            if wanted and missing:
                # Joined by the id that the agent reported, where the trace itself names nobody.
                found |= {facts.trace_id: facts for facts in self._search(experiment, "request_id", missing)}
        return list(found.values())

    def _experiment(self, name: str) -> str | None:
        if name not in self._ids:
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                return None
            self._ids[name] = str(experiment.experiment_id)
        return self._ids[name]

    def _search(self, experiment: str, field: str, ids: Sequence[str]) -> Iterator[TraceFacts]:
        quoted = ", ".join(f"'{each}'" for each in ids if _ID.fullmatch(each))
        if not quoted:
            return
        token = None
        while True:
            page = self._client.search_traces(
                locations=[experiment], filter_string=f"{field} IN ({quoted})", max_results=IDS_PER_SEARCH,
                page_token=token, include_spans=False,
            )  # fmt: skip
            yield from (read_facts(trace.info) for trace in page)
            token = page.token
            if not token:
                return


def read_facts(info: Any) -> TraceFacts:
    """What a trace's information says, leniently: a part that cannot be read is unknown."""
    metadata = info.trace_metadata or {}
    usage = _object(metadata.get("mlflow.trace.tokenUsage"))
    prompt, output = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    known = prompt is not None and output is not None
    return TraceFacts(
        trace_id=str(info.trace_id),
        client_request_id=info.client_request_id,
        is_ended=str(getattr(info.state, "value", info.state)) in _ENDED,
        started_at=_instant(info.request_time),
        # MLflow's input counts everything that was sent; the part that touched a cache is counted apart.
        input_tokens=max(0, prompt - (read or 0) - (written or 0)) if known and prompt is not None else None,
        output_tokens=output if known else None,
        cache_read_tokens=(read or 0) if known else None,
        cache_write_tokens=(written or 0) if known else None,
        cost=_money(_object(metadata.get("mlflow.trace.cost")).get("total_cost")),
    )


def _object(text: Any) -> dict[str, Any]:
    with suppress(TypeError, ValueError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**62:
        return None
    return int(value)


def _money(value: Any) -> Decimal | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount >= 0 else None


def _instant(milliseconds: Any) -> datetime | None:
    with suppress(TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    return None


def _stand_back() -> None:
    """Put this thread behind everything else; where threads share one niceness, nothing is changed."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
