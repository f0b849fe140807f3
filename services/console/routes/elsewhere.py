"""The way from an attempt to its run in the workspace and to its trace in MLflow."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import HTMLResponse, RedirectResponse, Response

from services.console.gateways.elsewhere import Elsewhere
from services.console.routes.pages import Templates
from services.console.storage.tasks import TaskStorage
from shared.contract.errors import LockkeeperError, MissingError


class ElsewhereRoutes:
    """Two addresses that lead on; they are no part of the API's reference."""

    def __init__(self, storage: TaskStorage, elsewhere: Elsewhere, templates: Templates) -> None:
        self._storage = storage
        self._elsewhere = elsewhere
        self._templates = templates

    def router(self) -> APIRouter:
        """Their paths."""
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        for path, page in (("run", self.run), ("trace", self.trace)):
            router.add_api_route(f"/tasks/{{task_id}}/attempts/{{attempt_id}}/{path}", page, methods=["GET"])
        return router

    async def run(self, task_id: UUID, attempt_id: UUID) -> Response:
        """The run's page in the workspace."""
        run_id = await self._told(task_id, attempt_id, "run_id")
        return await self._lead(task_id, "run", self._elsewhere.run_page(run_id))

    async def trace(self, task_id: UUID, attempt_id: UUID) -> Response:
        """The trace's page in MLflow."""
        trace_id = await self._told(task_id, attempt_id, "trace_id")
        return await self._lead(task_id, "trace", self._elsewhere.trace_page(trace_id))

    async def _told(self, task_id: UUID, attempt_id: UUID, name: str) -> Any:
        async with self._storage.database.transaction() as connection:
            attempts = await self._storage.list_attempts(connection, task_id)
        for attempt in attempts:
            if attempt["id"] == attempt_id and attempt[name] is not None:
                return attempt[name]
        raise MissingError(f"This attempt has no {name.removesuffix('_id')}.")

    async def _lead(self, task_id: UUID, what: str, finding: Awaitable[str]) -> Response:
        try:
            return RedirectResponse(await finding, 303)
        except LockkeeperError as error:
            is_gone = isinstance(error, MissingError)
            page = self._templates.page(
                "elsewhere.html", task_id=task_id, what=what, says=error.message, is_gone=is_gone
            )
            page.status_code = 404 if is_gone else 503
            return page
