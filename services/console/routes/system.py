"""The system as it stands, and what operators did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from services.console.messages.answers import AuditPage, State
from services.console.routes.given import API, PROBLEMS, Json, Limit
from services.console.storage.operating import OperatingStorage
from services.console.storage.system import SystemStorage


class SystemRoutes:
    """`/state` and `/audit`."""

    def __init__(self, storage: SystemStorage, audit: OperatingStorage) -> None:
        self._storage = storage
        self._audit = audit

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["system"], responses=PROBLEMS)
        router.add_api_route("/state", self.state, methods=["GET"], response_model=State)
        router.add_api_route("/audit", self.audit, methods=["GET"], response_model=AuditPage)
        return router

    async def state(self) -> Response:
        """Which replicas live, how they hear, and the queue by agent."""
        replicas = await self._storage.list_replicas()
        queue = await self._storage.list_queue_state()
        shown = [{name: value for name, value in row.items() if name != "now"} for row in replicas]
        as_of = replicas[0]["now"] if replicas else datetime.now(UTC)
        services = [_service(name, replicas) for name in sorted({row["service"] for row in replicas})]
        return Json({"as_of": as_of, "services": services, "replicas": shown, "agents": [dict(row) for row in queue]})

    async def audit(
        self,
        cursor: Annotated[UUID | None, Query(description="`next_cursor` of the page before")] = None,
        target: Annotated[str | None, Query(max_length=200, description="`task/…` or `agent/…`")] = None,
        limit: Limit = 50,
    ) -> Response:
        """What operators did, newest first."""
        rows = await self._audit.list_audit(cursor, target, limit)
        following = str(rows[-1]["id"]) if len(rows) == limit else None
        return Json({"entries": [dict(row) for row in rows], "next_cursor": following})


def _service(name: str, replicas: Sequence[Any]) -> dict[str, Any]:
    alive = [row for row in replicas if row["service"] == name and row["is_alive"]]
    states = {row["listener"] for row in alive} - {None}
    listener = None if not states else "live" if states == {"live"} else "polling"
    return {"service": name, "alive": len(alive), "listener": listener}
