"""A real MLflow tracking server, and traces put into it over its own wire."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx

from deploy.local.folder import free_port
from deploy.local.tracking import command


class MlflowServer:
    """The server of the local stack, ready when made."""

    def __init__(self, home: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        server = command(home, port, os.environ)
        with (home / "log").open("wb") as log:
            self.process = subprocess.Popen(server.arguments, env=server.environment, stdout=log, stderr=log)
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        give_up_at = time.monotonic() + 240
        while not self._answers():
            assert self.process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < give_up_at, "the tracking server did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return self.http.get("/version").status_code == 200
        except httpx.TransportError:
            return False

    def experiment(self, name: str) -> str:
        """A new experiment; its id."""
        answer = self.http.post("/api/2.0/mlflow/experiments/create", json={"name": name})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["experiment_id"])

    def trace(self, experiment: str, attempt: UUID | None, *, state: str = "OK", **metadata: Any) -> str:
        """Store the information of one trace; `usage` and `cost` are JSON values or raw text. Its id."""
        trace_id = f"tr-{uuid4().hex}"
        names = {"usage": "mlflow.trace.tokenUsage", "cost": "mlflow.trace.cost"}
        info = {
            "trace_id": trace_id,
            "client_request_id": None if attempt is None else str(attempt),
            "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}},
            "request_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "execution_duration": "1s",
            "state": state,
            "trace_metadata": {
                "mlflow.trace_schema.version": "3",
                **{
                    names[name]: value if isinstance(value, str) else json.dumps(value)
                    for name, value in metadata.items()
                },
            },
            "tags": {},
        }
        answer = self.http.post("/api/3.0/mlflow/traces", json={"trace": {"trace_info": info}})
        assert answer.status_code == 200, answer.text
        return trace_id

    def stop(self) -> None:
        """End the server."""
        self.http.close()
        self.process.terminate()
        self.process.wait(30)
