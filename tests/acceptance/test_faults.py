"""What dies while a batch is under way costs nothing: every task ends, once, and no limit is passed.

The batch is small unless LOCKKEEPER_TEST_BATCH says otherwise; the long form is 50.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import httpx
import psutil
import pytest

from deploy.local.folder import free_port
from tests.support.batch import BATCH, PATIENCE, Batch, StackUser, page
from tests.support.stack import StackProcess

pytestmark = pytest.mark.timeout(600)

START_SECONDS = 300
SERVICES = (
    "dispatcher", "sweeper", "callback_receiver", "cost_attributor", "notifier", "console", "front_door",
)  # fmt: skip
NEEDED = ("postgres", "schema", "workspace", "setup", *SERVICES)
"""The orchestrator. MLflow runs too, but nothing waits for it."""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackUser]:
    """A stack of its own for these stories: they break it."""
    folder = tmp_path_factory.mktemp("faults") / "data"
    given = {"LOCKKEEPER_MODEL_SECONDS": "8", "LOCKKEEPER_AGENT_TRACE_WAIT_SECONDS": "0.5"}
    stack = StackProcess(folder, free_port(), *NEEDED, "mlflow", **given).start(START_SECONDS, *NEEDED)
    user = StackUser(stack)
    yield user
    user.close()
    stack.destroy()


@pytest.fixture(scope="module")
def documents(user: StackUser) -> list[str]:
    """As many one-page documents as a batch has tasks."""
    return user.upload([page(number) for number in range(BATCH)])


@pytest.fixture(autouse=True)
def _mended(user: StackUser) -> Iterator[None]:
    """Each story starts and ends on a stack that is whole, and slow enough to be caught at work."""
    user.mend()
    user.wait(lambda: user.stack.states(*NEEDED) <= {"ready", "done"}, 120)
    yield
    user.mend()


@pytest.fixture
def thinking(user: StackUser) -> None:
    """Every answer of the model takes a moment, so that a batch lasts long enough."""
    user.break_it(api="serving.chat", kind="delay", seconds=0.4)


def killed(user: StackUser, name: str) -> None:
    """Kill a part with SIGKILL and see it come back."""
    before = user.stack.part(name)["pid"]
    user.stack.signal(signal.SIGKILL, before)
    user.wait(lambda: user.stack.part(name)["pid"] not in {None, before}, 30)


def pids(user: StackUser) -> dict[str, int]:
    return {part["name"]: part["pid"] for part in user.stack.description()["parts"]}


@pytest.mark.usefixtures("thinking")
@pytest.mark.parametrize("name", SERVICES)
def test_a_killed_service_loses_nothing_and_spends_nothing(user: StackUser, documents: list[str], name: str) -> None:
    agent = user.agent(f"kill-{name.replace('_', '-')}")
    half = len(documents) // 2
    batch = user.submit(agent, documents[:half])
    user.wait_under_way(batch)
    killed(user, name)
    # People go on submitting; while nobody answers their client asks again under the same key.
    user.submit(agent, documents[half:], batch)
    user.judge(batch, attempts=1)


@pytest.mark.usefixtures("thinking")
def test_a_killed_workspace_starts_no_run_twice(user: StackUser, documents: list[str]) -> None:
    batch = user.submit(user.agent("kill-workspace"), documents)
    user.wait_under_way(batch)
    killed(user, "workspace")
    # The runs that were being executed are lost with it, and their attempts are spent; the others are not.
    tasks = user.judge(batch, attempts=2)
    assert sum(task["attempt"] > 1 for task in tasks) <= 2


@pytest.mark.usefixtures("thinking")
def test_a_killed_job_process_costs_its_own_attempt_only(user: StackUser, documents: list[str]) -> None:
    batch = user.submit(user.agent("kill-job"), documents)
    user.wait_under_way(batch)
    user.working().kill()
    tasks = user.judge(batch, attempts=2)
    assert sum(task["attempt"] > 1 for task in tasks) <= 1


@pytest.mark.usefixtures("thinking")
def test_a_killed_postgres_comes_back_with_everything(user: StackUser, documents: list[str]) -> None:
    batch = user.submit(user.agent("kill-postgres"), documents)
    user.wait_under_way(batch)
    killed(user, "postgres")
    user.judge(batch, attempts=1)


@contextmanager
def held_port(port: int) -> Iterator[None]:
    """Nobody listens on the port, and nobody can."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        yield


@pytest.mark.usefixtures("thinking")
def test_k01_while_postgres_is_away_nobody_restarts_and_no_attempt_is_spent(
    user: StackUser, documents: list[str]
) -> None:
    batch = user.submit(user.agent("k01"), documents)
    user.wait_under_way(batch)
    before = pids(user)
    ops = {
        part["name"]: part["metrics_url"].removesuffix("/metrics")
        for part in user.stack.description()["parts"] if part["metrics_url"]
    }  # fmt: skip
    port = int(user.stack.part("postgres")["url"].rpartition(":")[2])

    def says(path: str, status: int) -> bool:
        return all(httpx.get(base + path, trust_env=False).status_code == status for base in ops.values())

    away = time.monotonic()
    user.stack.signal(signal.SIGKILL, before["postgres"])
    psutil.wait_procs([psutil.Process(before["postgres"])] if psutil.pid_exists(before["postgres"]) else [], 10)
    with held_port(port):
        user.wait(lambda: says("/readyz", 503), 60)
        user.wait(lambda: time.monotonic() - away > 15, 30)
        assert says("/livez", 200)
    user.wait(lambda: says("/readyz", 200), 60)
    user.judge(batch, attempts=1)
    after = pids(user)
    assert {name: pid for name, pid in after.items() if pid != before[name]}.keys() == {"postgres"}


@pytest.mark.usefixtures("thinking")
def test_three_dispatchers_keep_limits_that_change_all_the_time(user: StackUser, documents: list[str]) -> None:
    agent = user.agent("moving", max_concurrent_tasks=1)
    twins = [user.twin("dispatcher", f"twin-{number}") for number in (1, 2)]
    over = threading.Event()

    def move() -> int:
        changes = 0
        for most in cycle((4, 1, 6, 2, 0, 3)):
            user.agent(agent, max_concurrent_tasks=most, max_tpm=most * 40_000 or None)
            changes += 1
            if over.wait(0.2):
                return changes
        return changes

    try:
        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(move)
            try:
                batch = user.submit(agent, documents + documents)
                user.ended(batch, 2 * PATIENCE)
            finally:
                over.set()
            assert moving.result() > 10
        tasks = user.judge(batch, attempts=1)
        claimed_by = {each["locked_by"] for task in tasks for each in task["attempts"]}
        assert len(claimed_by) > 1
    finally:
        for twin in twins:
            twin.terminate()
        assert [twin.wait(30) for twin in twins] == [0, 0]


def of_task(task_id: str) -> dict[str, Any]:
    """What a fault rule must match to strike the runs of one task."""
    return {"parameters": {"task_id": task_id}}


@contextmanager
def waiting_batch(user: StackUser, agent: str, documents: list[str], **terms: Any) -> Iterator[Batch]:
    """A batch whose tasks start when the block ends: time to lay traps for each."""
    user.ask("POST", f"/api/v1/agents/{agent}/pause")
    yield user.submit(agent, documents, **terms)
    user.ask("POST", f"/api/v1/agents/{agent}/resume")


def test_l04_a_silent_death_is_noticed_and_a_deadly_document_ends(user: StackUser, documents: list[str]) -> None:
    agent = user.agent("silent", lease_seconds=5)
    with waiting_batch(user, agent, documents, max_attempts=2) as batch:
        unlucky, deadly = batch.ids[:2]
        user.break_it(api="run", kind="die_silently", times=1, match=of_task(unlucky))
        user.break_it(api="run", kind="die_silently", match=of_task(deadly))
    tasks = {task["id"]: task for task in user.ended(batch)}
    assert [each["status"] for each in tasks[unlucky]["attempts"]] == ["lost", "completed"]
    assert tasks[unlucky]["attempts"][0]["error"]["reason"] == "run_ended_silently"
    assert tasks[deadly]["status"] == "failed"
    assert tasks[deadly]["error"]["reason"] == "lease_exhausted"
    assert [each["status"] for each in tasks[deadly]["attempts"]] == ["lost", "lost"]
    others = [task for name, task in tasks.items() if name not in {unlucky, deadly}]
    assert {(task["status"], task["attempt"]) for task in others} == {("completed", 1)}
    user.check_invariants()


def test_d01_lost_answers_start_each_run_once(user: StackUser, documents: list[str]) -> None:
    agent = user.agent("lost-answers")
    rules = [
        user.break_it(api="jobs.run_now", kind="drop_after_effect", times=3),
        user.break_it(api="jobs.run_now", kind="status_after_effect", status=503, times=3),
    ]
    batch = user.submit(agent, documents)
    user.judge(batch, attempts=1)
    assert [user.used(rule) for rule in rules] == [3, 3]


def test_refusals_for_now_spend_no_attempt(user: StackUser, documents: list[str]) -> None:
    user.break_it(api="jobs.run_now", kind="status", status=429, retry_after="1")
    batch = user.submit(user.agent("throttled"), documents)
    # The SDK asks again by itself for a while; then the task is put back.
    user.wait(lambda: any(event["verb"] == "release" for event in user.task(batch.ids[0])["events"]), 60)
    user.mend()
    user.judge(batch, attempts=1)


SUCCESS = {"result": {"late": True}, "result_stored": False, "trace_state": "unavailable"}


def test_w02_a_callback_that_comes_again_changes_nothing(user: StackUser, documents: list[str]) -> None:
    batch = user.submit(user.agent("again"), documents[:1])
    [task] = user.judge(batch, attempts=1)
    [attempt] = task["attempts"]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: user.call_back(attempt["id"], "result", SUCCESS), range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    after = user.task(task["id"])
    assert (after["version"], after["result"]) == (task["version"], task["result"])
    user.check_invariants()


def test_l01_the_late_success_of_a_lost_attempt_wins_and_the_newer_run_is_cancelled(
    user: StackUser, documents: list[str]
) -> None:
    agent = user.agent("late", lease_seconds=5)
    with waiting_batch(user, agent, documents[:1]) as batch:
        [task_id] = batch.ids
        user.break_it(api="run", kind="die_silently", times=1, match=of_task(task_id))
        user.break_it(api="run", kind="hold", state="PENDING", skip=1, match=of_task(task_id))
    user.wait(lambda: [each["status"] for each in user.task(task_id)["attempts"]] == ["lost", "submitted"], 60)
    lost, newer = user.task(task_id)["attempts"]
    assert user.call_back(lost["id"], "result", SUCCESS).json()["outcome"] == "completed"
    [task] = user.judge(batch, attempts=2)
    assert (task["reason"], task["result"]) == ("late_success", {"late": True})
    assert [each["status"] for each in task["attempts"]] == ["completed", "superseded"]
    ends = {user.attempt_of(run): run["state"].get("result_state") for run in user.runs(batch)}
    assert ends == {lost["id"]: "SUCCESS", newer["id"]: "CANCELED"}
    again = user.call_back(newer["id"], "failure", {"reason": "too_late", "message": "x", "retryable": True})
    assert again.json()["outcome"] == "superseded"
    assert user.task(task_id)["version"] == task["version"]


@pytest.mark.parametrize(
    ("rule", "reason", "attempts"),
    [
        pytest.param({"api": "serving.answer", "kind": "nonsense"}, "model_answer_invalid", 1, id="nonsense"),
        pytest.param({"api": "serving.answer", "kind": "empty"}, "model_answer_invalid", 1, id="nothing"),
        pytest.param({"api": "serving.chat", "kind": "status", "status": 429}, "model_throttled", 2, id="429"),
        pytest.param({"api": "serving.chat", "kind": "status", "status": 500}, "model_unavailable", 2, id="500"),
        pytest.param({"api": "serving.chat", "kind": "hang"}, "model_unavailable", 2, id="hangs"),
    ],
)
def test_a_model_that_fails_ends_the_task_with_its_reason(
    user: StackUser, documents: list[str], rule: dict[str, Any], reason: str, attempts: int
) -> None:
    user.break_it(**rule)
    batch = user.submit(user.agent(f"model-{rule['kind']}-{rule.get('status', 0)}"), documents[:1], max_attempts=2)
    [task] = user.ended(batch)
    assert (task["status"], task["error"]["reason"], task["attempt"]) == ("failed", reason, attempts)
    assert task["error"]["message"]
    assert "Traceback" not in str(task["error"])
    user.check_invariants()


def test_a_model_that_recovers_costs_one_more_attempt(user: StackUser, documents: list[str]) -> None:
    user.break_it(api="serving.chat", kind="status", status=429, retry_after="1", times=1)
    batch = user.submit(user.agent("model-recovers"), documents[:1])
    [task] = user.judge(batch, attempts=2)
    assert [each["status"] for each in task["attempts"]] == ["failed", "completed"]


@pytest.mark.usefixtures("thinking")
def test_after_a_stop_and_a_start_it_goes_on_where_it_was(user: StackUser, documents: list[str]) -> None:
    batch = user.submit(user.agent("pause-and-on"), documents)
    user.wait_under_way(batch)
    user.stack.destroy()
    user.stack.start(START_SECONDS, *NEEDED)
    user.judge(batch, attempts=2)
