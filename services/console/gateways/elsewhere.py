"""Pages of other programs about an attempt: its run in the workspace, its trace in MLflow.

Whoever keeps them is asked where they are: no address is guessed, and what was deleted leads nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from shared.contract.errors import MissingError, TransientError
from shared.vendors.jobs import Jobs
from shared.vendors.workspace import Workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_SECONDS = 10.0


class Elsewhere:
    """Finds addresses of pages. MissingError: it is not known there. TransientError: nobody answers."""

    def __init__(self, workspace: Workspace, tracking_uri: str) -> None:
        self._workspace = workspace
        self._jobs = Jobs(workspace)
        self._tracking_uri = tracking_uri.rstrip("/")

    async def run_page(self, run_id: int) -> str:
        """The page of a run."""
        address = await self._jobs.page(run_id)
        if not address:
            raise MissingError("The workspace names no page for this run.")
        return address

    async def trace_page(self, trace_id: str) -> str:
        """The page of a trace."""
        if not self._tracking_uri:
            raise MissingError("No tracking server is named (MLFLOW_TRACKING_URI).")
        path = f"/api/3.0/mlflow/traces/{quote(trace_id, safe='')}"
        is_workspace = not self._tracking_uri.startswith(("http://", "https://"))
        site, answer = await (self._ask_workspace(path) if is_workspace else self._ask_server(path))
        place = answer.get("trace", {}).get("trace_info", {}).get("trace_location", {})
        experiment = place.get("mlflow_experiment", {}).get("experiment_id")
        if not experiment:
            raise MissingError("The tracking server does not say where this trace is.")
        return f"{site}/experiments/{quote(str(experiment))}/traces?selectedEvaluationId={quote(trace_id, safe='')}"

    async def _ask_workspace(self, path: str) -> tuple[str, Any]:
        def ask(client: WorkspaceClient) -> tuple[str, Any]:
            return f"{client.config.host}/ml", client.api_client.do("GET", path)

        return await self._workspace.call(ask)

    async def _ask_server(self, path: str) -> tuple[str, Any]:
        try:
            async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False) as http:
                answer = await http.get(self._tracking_uri + path)
        except httpx.HTTPError as error:
            raise TransientError("The tracking server does not answer.", reason="unreachable") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise MissingError("The tracking server does not know this trace (any more).")
        if answer.status_code != httpx.codes.OK:
            raise TransientError(f"The tracking server answered {answer.status_code}.", reason="unreachable")
        return f"{self._tracking_uri}/#", answer.json()
