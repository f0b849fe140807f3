"""A real MLflow tracking server for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from deploy.local.folder import free_port


class TrackingServer:
    """One worker on SQLite; ready when `start` returns."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        arguments = [
            str(Path(sys.executable).parent / "mlflow"), "server", f"--backend-store-uri=sqlite:///{home / 'mlflow.db'}",
            f"--artifacts-destination={home / 'artifacts'}", "--host=127.0.0.1", f"--port={self.port}", "--workers=1",
        ]  # fmt: skip
        with (home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                arguments, stdout=log, stderr=log, env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float = 240) -> None:
        """Wait until it answers."""
        give_up_at = time.monotonic() + seconds
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/version", timeout=2).close()  # noqa: S310 - loopback
            except OSError:
                assert self.process.poll() is None, "the tracking server ended at its start"
                assert time.monotonic() < give_up_at, "the tracking server did not start"
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """End it with everything that it started."""
        os.killpg(self.process.pid, 15)
        self.process.wait(15)
