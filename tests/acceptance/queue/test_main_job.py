"""The main job from outside: the demo and the command line on a running stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.documents import generate
from tests.support.stack import CHECKOUT, StackProcess

# The first story of the session waits for the stack to start.
pytestmark = pytest.mark.timeout(600)

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lockkeeper(queue_stack: StackProcess) -> Program:
    """The command, told where this stack is."""
    stack = queue_stack.description()
    environment = {
        **os.environ, "LOCKKEEPER_URL": stack["url"], "LOCKKEEPER_DATABASE_URL": stack["database_url"],
    }  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lockkeeper", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=CHECKOUT, timeout=180
        )

    return run


def answer(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_demo_brings_every_document_to_its_right_end(queue_stack: StackProcess) -> None:
    ended = subprocess.run(
        queue_stack.command("demo"), capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=500
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["submitted"] >= 10
    assert told["unexpected"] == {}
    assert told["completed"] + told["failed"] == told["submitted"]


def test_a_person_follows_one_document_on_the_command_line(lockkeeper: Program, tmp_path: Path) -> None:
    [(file, _)] = generate(tmp_path, ("invoice",))
    made = answer(lockkeeper("tasks", "submit", "--agent", "document-agent", str(file), "--wait", "--json"))
    [task] = made["tasks"]
    assert task["status"] == "completed"
    shown = lockkeeper("tasks", "show", task["id"])
    assert shown.returncode == 0
    assert "completed" in shown.stdout
    listed = answer(lockkeeper("tasks", "list", "--status", "completed", "--json"))
    assert task["id"] in {each["id"] for each in listed["tasks"]}
    again = answer(lockkeeper("tasks", "reprocess", task["id"], "--json"))
    assert again["tasks"][0]["id"] != task["id"]


def test_an_attempt_leads_to_its_run_and_its_trace(queue_stack: StackProcess) -> None:
    """The demo's traces are in MLflow, its runs in the workspace; both say where."""
    with httpx.Client(base_url=queue_stack.description()["url"], timeout=60, trust_env=False) as http:
        [newest] = http.get("/api/v1/tasks?status=completed&limit=1").json()["tasks"]
        attempt = http.get(f"/api/v1/tasks/{newest['id']}").json()["attempts"][-1]
        path = f"/tasks/{newest['id']}/attempts/{attempt['id']}"
        run, trace = (http.get(f"{path}/{what}") for what in ("run", "trace"))
    assert run.status_code == 303
    assert attempt["run_id"] in run.headers["location"]
    assert trace.status_code == 303, trace.text
    assert trace.headers["location"].endswith(f"/traces?selectedEvaluationId={attempt['trace_id']}")


def test_a_locked_document_says_why_it_failed(lockkeeper: Program, tmp_path: Path) -> None:
    [(file, _)] = generate(tmp_path, ("letter-locked",))
    submitted = lockkeeper("tasks", "submit", "--agent", "document-agent", str(file), "--wait", "--json")
    assert submitted.returncode == 1
    [task] = json.loads(submitted.stdout)["tasks"]
    shown = lockkeeper("tasks", "show", task["id"])
    assert "password_required" in shown.stdout
    assert "Traceback" not in shown.stdout


def test_a_file_that_is_no_document_is_refused_with_a_reason(lockkeeper: Program, tmp_path: Path) -> None:
    empty = tmp_path / "nothing.pdf"
    empty.touch()
    refused = lockkeeper("tasks", "submit", "--agent", "document-agent", str(empty))
    assert refused.returncode == 1
    assert "nothing.pdf" in refused.stderr
    assert "empty" in refused.stderr


def test_limits_are_changed_live(lockkeeper: Program) -> None:
    before = {agent["name"]: agent for agent in answer(lockkeeper("agents", "list", "--json"))["agents"]}
    name = "frugal-document-agent"
    changed = answer(lockkeeper("agents", "set", name, "max_tpm=9000", "max_concurrent_tasks=null", "--json"))
    assert changed["max_tpm"] == 9000
    assert changed["max_concurrent_tasks"] is None
    assert changed["version"] > before[name]["version"]
    assert answer(lockkeeper("agents", "pause", name, "--json"))["paused"] is True
    assert answer(lockkeeper("agents", "resume", name, "--json"))["paused"] is False


def test_a_dry_run_changes_nothing(lockkeeper: Program) -> None:
    counted = answer(lockkeeper("tasks", "bulk", "cancel", "--status", "enqueued", "--json"))
    assert counted["changed"] == 0


def test_an_unknown_task_is_one_clear_line(lockkeeper: Program) -> None:
    ended = lockkeeper("tasks", "show", "00000000-0000-7000-8000-000000000000")
    assert ended.returncode == 1
    assert ended.stderr.startswith("lockkeeper: 404 ")
    assert ended.stderr.count("\n") == 1


def test_costs_are_told_by_agent(lockkeeper: Program) -> None:
    told = answer(lockkeeper("costs", "--group-by", "agent", "--json"))
    assert "document-agent" in {row["key"] for row in told["costs"]}
    assert lockkeeper("costs", "--group-by", "customer", "--csv").stdout.count("\n") >= 1


def test_the_doctor_finds_nothing_broken(lockkeeper: Program) -> None:
    found = answer(lockkeeper("doctor", "--json"))
    assert found["ok"], [finding for finding in found["findings"] if finding["state"] == "broken"]
