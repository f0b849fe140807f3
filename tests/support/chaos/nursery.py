"""Where the replicas of a chaos run come from: a process that has imported everything once and forks.

A life that begins by importing the vendors' clients costs seconds of CPU; by fork it costs milliseconds, so a
short run on two cores can kill often. What runs in the child is the service's own `main`.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
from typing import Any

from deploy.local.process import tie_to_parent
from tests.support.chaos.clock_shift import shift_clock
from tests.support.statements import ROOT

SERVICES = ("dispatcher", "sweeper", "callback_receiver")


class Nursery:
    """The forking process, seen from outside. Its children end with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.chaos.nursery"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._ask({})

    def start(self, service: str, environment: dict[str, str], log: str, shift: float) -> int:
        """The id of a new process that runs this service."""
        return int(self._ask({"service": service, "environment": environment, "log": log, "shift": shift})["pid"])

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Fork for every line of standard input."""
    apps = {service: importlib.import_module(f"services.{service}.app") for service in SERVICES}
    importlib.import_module("databricks.sdk")
    importlib.import_module("requests")
    # Nobody waits for the children here: they are gone as soon as they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        parent = os.getpid()
        pid = os.fork() if order else 0
        if pid == 0 and order:
            _become(apps[order["service"]], order, parent)
        print(json.dumps({"pid": pid}), flush=True)


def _become(app: Any, order: dict[str, Any], parent: int) -> None:
    """Turn this child into a replica; does not return."""
    tie_to_parent(parent, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()
    shift_clock(order["shift"])
    app.main()


if __name__ == "__main__":
    serve()
