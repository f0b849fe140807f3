"""A real Temporal server for tests: the dev server of the `temporal` command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from deploy.local.folder import free_port

PROGRAM = Path(sys.executable).with_name("temporal")
START_SECONDS = 60.0


class TemporalServer:
    """A running server; in memory, or in a file that survives its death."""

    def __init__(self, home: Path, *, file: bool = False) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        self._file = home / "temporal.db" if file else None
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> TemporalServer:
        arguments = [
            str(PROGRAM), "server", "start-dev", "--headless", "--ip=127.0.0.1", f"--port={self.port}",
            "--log-level=error", "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true",
        ]  # fmt: skip
        if self._file is not None:
            arguments += [
                f"--db-filename={self._file}", "--sqlite-pragma=journal_mode=wal", "--sqlite-pragma=synchronous=normal",
            ]  # fmt: skip
        with (self._home / "temporal.log").open("ab") as log:
            self.process = subprocess.Popen(
                arguments, stdout=log, stderr=log, env={**os.environ, "HOME": str(self._home)}
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, (self._home / "temporal.log").read_text()
            assert time.monotonic() < deadline, "temporal did not start"
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        asked = subprocess.run(
            [str(PROGRAM), "operator", "cluster", "health", "--address", self.address],
            capture_output=True, check=False, env={**os.environ, "HOME": str(self._home)},
        )  # fmt: skip
        return asked.returncode == 0

    def stop(self, ending: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(ending)
            self.process.wait(30)
            self.process = None
