"""The local stack starts, restarts what dies, and leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.folder import free_port
from tests.conftest import TestDatabase
from tests.support.stack import CHECKOUT, StackProcess, alive

SMALL = ("postgres", "front_door")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack") / "data"


@pytest.fixture
def stack(folder: Path) -> Iterator[StackProcess]:
    stack = StackProcess(folder, free_port(), *SMALL).start()
    yield stack
    stack.destroy()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)


def test_stack_json_tells_what_runs_and_only_its_owner_may_read_it(stack: StackProcess) -> None:
    description = stack.description()
    assert description["url"] == f"http://127.0.0.1:{stack.port}"
    assert description["database_url"].startswith("postgresql://lockkeeper:")
    for part in description["parts"]:
        assert psutil.pid_exists(part["pid"])
    assert stat.S_IMODE((stack.folder / "stack.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((stack.folder / "secrets.json").stat().st_mode) == 0o600


def test_a_second_up_in_the_same_folder_says_so(stack: StackProcess) -> None:
    second = run(stack.up())
    assert second.returncode == 2
    assert second.stderr.startswith("dev: a stack already runs here")
    assert second.stderr.count("\n") == 1
    assert stack.process is not None
    assert stack.process.poll() is None


@pytest.mark.parametrize("name", SMALL)
def test_a_killed_part_comes_back_on_its_port(stack: StackProcess, name: str) -> None:
    before = stack.part(name)
    stack.signal(signal.SIGKILL, before["pid"])
    stack.wait(lambda: stack.part(name)["pid"] not in {None, before["pid"]}, 20)
    stack.wait(lambda: stack.part(name)["state"] == "ready", 20)
    assert stack.part(name)["url"] == before["url"]
    assert stack.part(name)["restarts"] >= 1
    assert f"{name} was killed by SIGKILL" in stack.said()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_and_the_next_start_finds_the_same_ports(
    stack: StackProcess, ending: signal.Signals
) -> None:
    ports = {part["name"]: part["url"] for part in stack.description()["parts"]}
    family = stack.family()
    stack.signal(ending)
    assert stack.ended() == 0
    assert alive(family) == []
    assert not (stack.folder / "stack.json").exists()
    stack.start()
    assert {part["name"]: part["url"] for part in stack.description()["parts"]} == ports


@pytest.mark.parametrize("who", ["pid", "supervisor_pid"])
def test_kill_minus_nine_of_the_stack_itself_leaves_no_process(stack: StackProcess, who: str) -> None:
    family = stack.family()
    stack.signal(signal.SIGKILL, stack.description()[who])
    assert stack.ended() != 0
    assert alive(family, 30) == []
    stack.start()


def test_detached_it_goes_on_until_down(folder: Path) -> None:
    stack = StackProcess(folder, free_port(), *SMALL)
    started = run([*stack.up(), "--detach"])
    assert started.returncode == 0, started.stderr
    pids = [part["pid"] for part in stack.description()["parts"]]
    family = [psutil.Process(pid) for pid in [*pids, stack.description()["supervisor_pid"]]]
    stopped = run(stack.command("down"))
    assert stopped.returncode == 0
    assert alive(family) == []
    again = run(stack.command("down"))
    assert again.returncode == 1
    assert again.stderr.startswith("dev: no stack runs")


def test_the_owner_gets_a_psql(folder: Path) -> None:
    stack = StackProcess(folder, free_port(), "schema").start()
    try:
        asked = run([*stack.command("psql"), "--tuples-only", "--command=SELECT 'as ' || current_user"])
    finally:
        stack.destroy()
    assert asked.stdout.strip() == "as lockkeeper", asked.stderr


def test_the_front_door_is_friendly_while_the_console_is_not_there(stack: StackProcess) -> None:
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as door:
        door.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: door.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 503")
    assert "Lockkeeper is starting" in answer


def test_a_database_that_is_given_is_used_and_none_is_started(tmp_path: Path, database: TestDatabase) -> None:
    stack = StackProcess(tmp_path / "data", free_port(), "schema", LOCKKEEPER_DATABASE_URL=database.url()).start()
    try:
        assert [part["name"] for part in stack.description()["parts"]] == ["schema"]
        assert stack.description()["database_url"] == database.url()
    finally:
        stack.destroy()


def test_a_port_in_use_is_named(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refused = run(StackProcess(folder, other.getsockname()[1], *SMALL).up())
    assert refused.returncode == 1
    assert "is in use by another program" in refused.stderr


def test_an_unknown_part_is_named(folder: Path) -> None:
    refused = run(StackProcess(folder, free_port(), "postgers").up())
    assert refused.returncode == 1
    assert refused.stderr.startswith("dev: no such part: postgers; there are: postgres")
