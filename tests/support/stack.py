"""A local stack under test, started the way `./dev up` starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

CHECKOUT = Path(__file__).resolve().parents[2]
NO_RUNS = {"LOCKKEEPER_WORKSPACE_WARM_UP_DELAY_SECONDS": "3600"}
"""The environment of a stack in which no run executes: the agents' code is not imported, twice, in advance."""


class StackProcess:
    """One `up` in a folder, and what the test can see of it from outside."""

    def __init__(self, folder: Path, port: int, *only: str, **environment: str) -> None:
        self.folder = folder
        self.port = port
        self._only = ",".join(only)
        self._environment = {**os.environ, **environment}
        self.python = sys.executable
        self.output = folder.with_suffix(".out")
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str) -> list[str]:
        return [self.python, "-m", "deploy.local", *arguments, f"--data={self.folder}"]

    def up(self) -> list[str]:
        words = ["up", f"--port={self.port}"]
        return self.command(*words, f"--only={self._only}") if self._only else self.command(*words)

    def start(self, seconds: float = 60, *parts: str) -> StackProcess:
        """Returns once these parts are ready; every part when none is named."""
        (self.folder / "stack.json").unlink(missing_ok=True)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                self.up(), stdout=output, stderr=output, cwd=CHECKOUT, env=self._environment
            )
        self.wait(lambda: self.states(*parts) <= {"ready", "done"} and bool(self.states(*parts)), seconds)
        return self

    def wait(self, fact: Callable[[], bool], seconds: float) -> None:
        """Wait for a fact about the stack, with its own words when it does not come true."""
        deadline = time.monotonic() + seconds
        while not fact():
            assert time.monotonic() < deadline, f"not within {seconds} s; the stack said:\n{self.said()}"
            assert self.process is None or self.process.poll() is None, f"the stack ended:\n{self.said()}"
            time.sleep(0.05)

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def description(self) -> dict[str, Any]:
        with suppress(FileNotFoundError, ValueError):
            found: dict[str, Any] = json.loads((self.folder / "stack.json").read_text())
            return found
        return {}

    def part(self, name: str) -> dict[str, Any]:
        return next((part for part in self.description().get("parts", []) if part["name"] == name), {})

    def states(self, *parts: str) -> set[str]:
        return {part["state"] for part in self.description().get("parts", []) if not parts or part["name"] in parts}

    def family(self) -> list[psutil.Process]:
        """The whole tree of processes as it is now."""
        assert self.process is not None
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def signal(self, number: signal.Signals, pid: int | None = None) -> None:
        assert self.process is not None
        os.kill(pid or self.process.pid, number)

    def ended(self, seconds: float = 30) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def destroy(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)


def alive(processes: list[psutil.Process], seconds: float = 10) -> list[str]:
    """Those of the processes that are still there after the time."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return [" ".join(process.cmdline()) for process in left if process.is_running()]
