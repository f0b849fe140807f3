from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from deploy.local.folder import free_port
from lockkeeper import show
from lockkeeper.address import DEFAULT_URL, api_url, database_url
from lockkeeper.agents import read_agents
from lockkeeper.api import refusal
from lockkeeper.cli import COMMANDS, lockkeeper
from lockkeeper.failure import CommandError


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lockkeeper", *arguments],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    shown = CliRunner().invoke(lockkeeper, [command, "--help"])
    assert shown.exit_code == 0
    assert "Usage:" in shown.output


def test_every_command_that_answers_can_answer_in_json() -> None:
    for name in COMMANDS:
        group = lockkeeper.get_command(None, name)  # type: ignore[arg-type]
        assert group is not None
        for command in getattr(group, "commands", {name: group}).values():
            assert "as_json" in {parameter.name for parameter in command.params}, f"{name} {command.name}"


def test_the_help_imports_nothing_dear() -> None:
    code = (
        "import lockkeeper.cli, sys; print([m for m in ('httpx', 'asyncpg', 'yaml', 'pydantic') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_nobody_home_is_one_clear_line() -> None:
    ended = run_program("tasks", "list", LOCKKEEPER_URL=f"http://127.0.0.1:{free_port()}")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("lockkeeper: nothing answers at http://127.0.0.1:")
    assert ended.stderr.count("\n") == 1


def test_a_database_that_is_not_there_is_a_finding_not_a_trace() -> None:
    ended = run_program("doctor", "--json", "--url", f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    assert ended.returncode == 1
    answer = json.loads(ended.stdout)
    assert answer["ok"] is False
    assert answer["findings"][0]["name"] == "database"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tasks", "submit", "--agent", "a"], "nothing to submit"),
        (["tasks", "submit", "--agent", "a", "--input", "{"], "--input is not JSON"),
        (["tasks", "submit", "--agent", "a", "--input", "{}", "--label", "x"], "a label is NAME=VALUE"),
        (["agents", "set", "a", "five"], "a setting is NAME=VALUE"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(arguments: list[str], words: str) -> None:
    ended = run_program(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_problem_is_told_with_its_detail_and_fields() -> None:
    answer = httpx.Response(
        422,
        json={
            "title": "Not accepted",
            "detail": "two fields",
            "errors": [{"loc": ["body", "priority"], "msg": "at most 100"}, "and another"],
        },
    )
    assert refusal(answer) == "422 Not accepted: two fields (priority: at most 100; and another)"


def test_an_answer_that_is_no_problem_still_gives_a_line() -> None:
    assert refusal(httpx.Response(502, text="<html>")) == "502 Bad Gateway"


def test_the_local_stack_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCKKEEPER_URL", raising=False)
    monkeypatch.delenv("LOCKKEEPER_DATABASE_URL", raising=False)
    stack = tmp_path / ".lockkeeper" / "stack.json"
    stack.parent.mkdir()
    stack.write_text(json.dumps({"url": "http://127.0.0.1:9", "database_url": "postgresql://here"}))
    assert api_url() == "http://127.0.0.1:9"
    assert database_url(None) == "postgresql://here"
    assert database_url("postgresql://given") == "postgresql://given"
    monkeypatch.setenv("LOCKKEEPER_URL", "https://elsewhere")
    assert api_url() == "https://elsewhere"
    assert DEFAULT_URL.endswith(":8700")


@pytest.mark.parametrize("text", ["- a", "agents: [a]", "agents: {a: 1}", "{", ""])
def test_a_file_that_names_no_agents_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(text)
    with pytest.raises(CommandError):
        read_agents(file)


def test_agents_are_read_by_name(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text("agents:\n  reader: {target: reader-job, max_tpm: null}\n")
    assert read_agents(file) == {"reader": {"target": "reader-job", "max_tpm": None}}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"error": None}, None),
        ({"error": {"reason": "locked", "message": "the file is locked"}}, "the file is locked (locked)"),
        ({"error": {"reason": "lease_exhausted"}}, "lease_exhausted"),
    ],
)  # fmt: skip
def test_a_failure_reads_as_a_sentence(row: dict[str, object], sentence: str | None) -> None:
    assert show.error_of(row) == sentence


def test_unknown_money_is_pending_and_never_zero() -> None:
    assert show.money(None) == "pending"
    assert show.money("pending", "USD") == "pending"
    assert show.money("unknown", "USD") == "unknown"
    assert show.money("0.00123456789", "USD") == "0.001235 USD"
