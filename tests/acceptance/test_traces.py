from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.folder import free_port
from tests.support.batch import StackUser, page
from tests.support.collector import Collector
from tests.support.stack import StackProcess

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "LOCKKEEPER_TEST_TRACES" not in os.environ, reason="a stack of its own: LOCKKEEPER_TEST_TRACES=1"
    ),
]
PARTS = ("console", "dispatcher", "callback_receiver", "cost_attributor", "setup", "mlflow")
WAY = ("enqueue", "claim", "submit", "agent", "callback", "cost")
FROM = ("console", "dispatcher", "dispatcher", "document_agent", "callback_receiver", "cost_attributor")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture
def user(collector: Collector, tmp_path: Path) -> Iterator[StackUser]:
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "500"}
    stack = StackProcess(tmp_path / "stack", free_port(), *PARTS, **traced).start(300)
    made = StackUser(stack)
    yield made
    made.close()
    stack.destroy()


def test_one_trace_follows_a_task_through_all_processes_and_joins_with_the_logs(
    user: StackUser, collector: Collector
) -> None:
    batch = user.submit(user.agent("traces"), user.upload([page(1)]))
    (task,) = batch.ids
    user.wait(lambda: set(WAY) <= set(collector.of(task)), 400)
    spans = collector.of(task)
    assert tuple(spans[name].service for name in WAY) == FROM
    parents = ["", *(spans[name].span_id for name in WAY[:-1])]
    assert [spans[name].parent_id for name in WAY] == parents, "each stage hangs below the one before it"
    (attempt,) = user.task(task)["attempts"]
    assert spans["agent"].attributes["lockkeeper.attempt_id"] == attempt["id"]
    assert spans["cost"].attributes["mlflow_trace_id"] == attempt["trace_id"], "and leads on to the model's trace"
    assert int(spans["cost"].attributes["tokens"]) > 0
    lines = (user.stack.folder / "logs" / "dispatcher.log").read_text().splitlines()
    assert any(f'"trace_id":"{spans["submit"].trace_id}"' in line for line in lines if "record_runs" in line)
