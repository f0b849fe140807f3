"""Give a new stack what a person would set up by hand: saved jobs, the Volume, agents.

Run as a process of its own at every start. It only adds what is missing and never changes what is
there, so that limits which were changed live survive a restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import click
import httpx
import yaml

DESCRIPTION = Path(__file__).with_name("agents.yaml")
MOST_RUNS_AT_ONCE = 1000


class WorkspaceClient:
    """The few calls of the workspace that a set-up needs; the SDK would cost seconds to import."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def log_in(self, client_id: str, client_secret: str) -> None:
        """Use this service principal from now on."""
        form = {"grant_type": "client_credentials", "scope": "all-apis"}
        answer = await self._http.post("/oidc/v1/token", data=form, auth=(client_id, client_secret))
        answer.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    async def ensure_directory(self, path: str) -> None:
        """Make a directory of a Volume; one that exists stays as it is."""
        (await self._http.put(f"/api/2.0/fs/directories{quote(path)}")).raise_for_status()

    async def ensure_job(self, name: str, entry_point: str) -> None:
        """Save a job under this name unless there is one."""
        found = await self._http.get("/api/2.2/jobs/list", params={"name": name, "limit": 1})
        found.raise_for_status()
        if not found.json().get("jobs"):
            (await self._http.post("/api/2.2/jobs/create", json=job_settings(name, entry_point))).raise_for_status()


def job_settings(name: str, entry_point: str) -> dict[str, Any]:
    """A saved job that runs one entry point of our wheel.

    It takes ids only, runs as many at once as our own limits let through, and never queues: a queue
    there would hold attempts whose lease is already counting.
    """
    return {
        "name": name,
        "max_concurrent_runs": MOST_RUNS_AT_ONCE,
        "queue": {"enabled": False},
        "parameters": [{"name": name, "default": ""} for name in ("task_id", "attempt_id", "pack_id")],
        "tasks": [
            {
                "task_key": "agent",
                "environment_key": "agent",
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
        "environments": [{"environment_key": "agent", "spec": {"client": "3", "dependencies": ["lockkeeper"]}}],
    }


async def set_up(description: Mapping[str, Any], workspace_url: str, database_url: str) -> list[str]:
    """Add what is missing; the names of the agents that were added."""
    async with httpx.AsyncClient(base_url=workspace_url, timeout=30, trust_env=False) as http:
        workspace = WorkspaceClient(http)
        await workspace.log_in(os.environ["DATABRICKS_CLIENT_ID"], os.environ["DATABRICKS_CLIENT_SECRET"])
        for path in description["volumes"]:
            await workspace.ensure_directory(path)
        for name, entry_point in description["jobs"].items():
            await workspace.ensure_job(name, entry_point)
    connection = await asyncpg.connect(database_url)
    try:
        return [name for name, settings in description["agents"].items() if await _add(connection, name, settings)]
    finally:
        await connection.close()


async def _add(connection: asyncpg.Connection, name: str, settings: Mapping[str, Any]) -> bool:
    """Make an agent unless there is one; the columns are those of our own description file."""
    columns = ", ".join(["name", *settings])
    tag = await connection.execute(
        f"INSERT INTO lockkeeper.agents ({columns}) "
        f"SELECT {columns} FROM jsonb_populate_record(NULL::lockkeeper.agents, $1::jsonb) ON CONFLICT DO NOTHING",
        json.dumps({"name": name, **settings}),
    )
    return str(tag) == "INSERT 0 1"


def main() -> int:
    """`python -m deploy.local.setup`, addresses from the environment the supervisor gives."""
    description = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))
    work = set_up(description, os.environ["DATABRICKS_HOST"], os.environ["LOCKKEEPER_DATABASE_URL"])
    try:
        for name in asyncio.run(work):
            click.echo(f"added agent {name}")
    except (httpx.HTTPError, asyncpg.PostgresError, OSError) as error:
        click.echo(f"setup: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
