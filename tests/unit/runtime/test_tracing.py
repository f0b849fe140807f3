from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from services.cost_attributor.loops import _count
from services.cost_attributor.messages import Attribution, EndedAttempt, Finding, Line
from shared.contract.ids import uuid7
from shared.contract.stages import AGENT, CALLBACK, CLAIM, ENQUEUE, span_id
from shared.runtime import tracing
from shared.runtime.spans import Tracer
from tests.support.collector import Collector


def test_everybody_works_out_the_same_ids() -> None:
    task, first, second = uuid7(), uuid4(), uuid4()
    assert span_id(ENQUEUE, task, first) == span_id(ENQUEUE, task, None), "the root belongs to the task"
    assert span_id(CLAIM, task, first) == span_id(CLAIM, task, first)
    assert len({span_id(CLAIM, task, first), span_id(CLAIM, task, second), span_id(AGENT, task, first)}) == 3


def test_a_share_is_the_same_tasks_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.ENDPOINT, "http://127.0.0.1:1")
    one, other = Tracer("console", "a", 0.25), Tracer("dispatcher", "b", 0.25)
    tasks = [uuid7() for _ in range(2_000)]
    kept = [one.keeps(task) for task in tasks]
    assert kept == [other.keeps(task) for task in tasks]
    assert 350 < sum(kept) < 650
    one.close()
    other.close()


def test_a_collector_gets_what_was_recorded_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    task = uuid7()
    with Collector() as collector:
        monkeypatch.setenv(tracing.ENDPOINT, collector.url)
        tracing.configure("dispatcher", "one")
        assert tracing.exemplar(task) == {"trace_id": task.hex}
        tracing.record(CLAIM, task, uuid4(), seconds=2, agent="parser")
        tracing.close()
        span = collector.of(str(task))["claim"]
    assert (span.service, round(span.seconds), span.attributes["agent"]) == ("dispatcher", 2, "parser")
    assert tracing.exemplar(task) is None


def test_off_nothing_of_opentelemetry_is_loaded() -> None:
    code = "import sys, shared.runtime.process; print(any(name.startswith('opentelemetry.exporter') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_was_attributed_leads_on_to_the_models_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    task, attempt, now = uuid7(), uuid4(), datetime.now(UTC)
    ended = EndedAttempt(
        attempt_id=attempt, task_id=task, agent="parser", trace_id="tr-1", trace_state="stored", usage=None,
        ended_seconds=1.0, used_at=now, never_ran=False,
    )  # fmt: skip
    line = Line(
        source="trace", record_id="tr-1", attempt_id=attempt, task_id=task, kind="llm", model="m", input_tokens=100,
        output_tokens=20, cache_read_tokens=None, cache_write_tokens=None, amount=None, used_at=now, parts=[],
        is_whole=True,
    )  # fmt: skip
    with Collector() as collector:
        monkeypatch.setenv(tracing.ENDPOINT, collector.url)
        tracing.configure("cost_attributor", "one")
        _count([Attribution(ended, Finding.FINAL, [line])])
        tracing.close()
        span = collector.of(str(task))["cost"]
    assert span.parent_id == f"{span_id(CALLBACK, task, attempt):016x}"
    assert (span.attributes["mlflow_trace_id"], span.attributes["tokens"]) == ("tr-1", "120")
