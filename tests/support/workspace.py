"""The workspace double as a process of its own, with its fault rules at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.statements import ROOT

CLIENT = ("lockkeeper", "lockkeeper-local")


class WorkspaceDouble:
    """A running double on a free port; stop it with `stop`."""

    def __init__(self, home: Path, **settings: object) -> None:
        home.mkdir(parents=True, exist_ok=True)
        own = {
            "port": 0,
            "data_dir": home / "data",
            "code_dir": ROOT,
            "billing_lag_seconds": 0,
            "warm_up_delay_seconds": 3600,
            **settings,
        }
        names = {f"LOCKKEEPER_WORKSPACE_{name.upper()}": _text(value) for name, value in own.items()}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
        with (home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deploy.local.workspace"],
                cwd=ROOT, env=clean | names, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        if not first:
            self.process.communicate()
            raise AssertionError((home / "log").read_text())
        self.url = str(json.loads(first)["url"])
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        answer = self.http.post("/oidc/v1/token", data={"grant_type": "client_credentials"}, auth=CLIENT)
        self.http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def environment(self) -> dict[str, str]:
        """What lets the SDK find and enter this workspace."""
        return {"DATABRICKS_HOST": self.url, "DATABRICKS_CLIENT_ID": CLIENT[0], "DATABRICKS_CLIENT_SECRET": CLIENT[1]}

    def make_job(self, name: str, entry_point: str = "document-agent", **settings: object) -> int:
        """A saved job that runs one entry point."""
        body = {
            "name": name,
            "max_concurrent_runs": 1000,
            "parameters": [{"name": name, "default": ""} for name in ("task_id", "attempt_id", "pack_id")],
            "tasks": [
                {
                    "task_key": "agent",
                    "python_wheel_task": {
                        "package_name": "lockkeeper",
                        "entry_point": entry_point,
                        "named_parameters": {
                            "task_id": "{{job.parameters.task_id}}",
                            "attempt_id": "{{job.parameters.attempt_id}}",
                            "pack_id": "{{job.parameters.pack_id}}",
                        },
                    },
                }
            ],
            **settings,
        }
        answer = self.http.post("/api/2.2/jobs/create", json=body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["job_id"])

    def fault(self, api: str, kind: str, **rule: Any) -> str:
        """Put a fault rule in force; its id."""
        answer = self.http.post("/faults", json={"api": api, "kind": kind, **rule})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def mend(self) -> None:
        """Take every fault rule out."""
        self.http.delete("/faults")

    def runs(self) -> list[dict[str, Any]]:
        """Every run of the workspace."""
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": 25}
        while True:
            page = self.http.get("/api/2.2/jobs/runs/list", params=query).json()
            found += page.get("runs", [])
            if not page.get("next_page_token"):
                return found
            query["page_token"] = page["next_page_token"]

    def stop(self) -> None:
        """End the process."""
        self.http.close()
        self.process.terminate()
        self.process.wait(15)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
