"""Tasks: enqueue and look."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from services.console.messages.answers import Family, Task, TaskDetail, TaskPage
from services.console.messages.requests import EnqueueRequest
from services.console.policy.paging import decode_cursor, encode_cursor
from services.console.routes.enqueueing import Enqueuer
from services.console.routes.given import API, PROBLEMS, Actor, Cursor, Filter, Json, Limit
from services.console.storage.tasks import TaskStorage
from shared.contract.errors import MissingError
from shared.contract.shown import TOKENS, shown_amounts, shown_cost, shown_task
from shared.db.pool import Connection


class TaskRoutes:
    """`/tasks`, as far as it does not change what is there."""

    def __init__(self, storage: TaskStorage, enqueuer: Enqueuer) -> None:
        self._storage = storage
        self._enqueuer = enqueuer

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["tasks"], responses=PROBLEMS)
        router.add_api_route(
            "/tasks", self.enqueue, methods=["POST"], status_code=201, response_model=Task,
            responses={200: {"model": Task, "description": "the task that this key and body made before"}},
        )  # fmt: skip
        router.add_api_route("/tasks", self.page, methods=["GET"], response_model=TaskPage)
        router.add_api_route("/tasks/{task_id}", self.show, methods=["GET"], response_model=TaskDetail)
        router.add_api_route("/tasks/{task_id}/children", self.children, methods=["GET"], response_model=TaskPage)
        return router

    async def enqueue(self, body: EnqueueRequest, actor: Actor) -> Response:
        """Enqueue a task, or a parent with its children.

        The same idempotency key and body answer 200 with the same task, another body 409.
        """
        row, is_new = await self._enqueuer.enqueue(body, actor)
        return Json(shown_task(row), 201 if is_new else 200, {"Location": f"/api/v1/tasks/{row['id']}"})

    async def page(self, chosen: Filter, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """A page of tasks, newest first."""
        rows = await self._storage.list_tasks(chosen, decode_cursor(cursor), limit)
        following = encode_cursor(rows[-1]["created_at"], rows[-1]["id"]) if len(rows) == limit else None
        tasks = [shown_task(row, row["waiting_reason"]) for row in rows]
        return Json({"tasks": tasks, "next_cursor": following})

    async def children(self, task_id: UUID, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """A page of a parent's children, first to last."""
        rows = await self._storage.list_children(task_id, decode_cursor(cursor), limit)
        following = encode_cursor(rows[-1]["created_at"], rows[-1]["id"]) if len(rows) == limit else None
        return Json({"tasks": [shown_task(row, row["waiting_reason"]) for row in rows], "next_cursor": following})

    async def show(self, task_id: UUID) -> Response:
        """Everything about one task."""
        return Json(await read_detail(self._storage, task_id))


async def read_detail(storage: TaskStorage, task_id: UUID) -> dict[str, Any]:
    """A task with all that belongs to it, as of one moment or another. Raises MissingError."""

    async def read(connection: Connection) -> dict[str, Any]:
        return await _detail(storage, connection, task_id)

    return await storage.database.atomically(read, repeatable=True)


async def _detail(storage: TaskStorage, connection: Connection, task_id: UUID) -> dict[str, Any]:
    row = await storage.read_task(connection, task_id)
    if row is None:
        raise MissingError(f"There is no task {task_id}.")
    content = await storage.read_task_content(connection, task_id)
    attempts = await storage.list_attempts(connection, task_id)
    events = await storage.list_events(connection, task_id)
    waiting = await storage.explain_waiting(connection, task_id) if row["status"] == "enqueued" else None
    redone = await storage.list_redone(connection, task_id)
    family = await storage.read_family(connection, task_id)
    cost = shown_cost(row if family is None else {"status": row["status"], "attempts": 1, **family})
    shown = shown_task(row, None if waiting is None else waiting["reason"])
    return {
        **shown,
        **(cost if family is not None else {}),
        "waiting": None if waiting is None else dict(waiting),
        "attempts": [_attempt(each) for each in attempts],
        "events": [dict(each) for each in events],
        "cost": cost,
        "family": None if family is None else {name: family[name] for name in Family.model_fields},
        "result": content["result"],
        "input": content["input"],
        "redone_by": [each["id"] for each in redone],
    }


def _attempt(row: Any) -> dict[str, Any]:
    """An attempt; its ids of runs are text, because browsers round large numbers."""
    status = row["cost_status"]
    money = {
        **shown_amounts(row, status),
        "retry_cost": None,
        "currency": row["currency"],
        "cost_status": status,
    }
    plain = {name: value for name, value in row.items() if name not in money}
    runs = {name: None if row[name] is None else str(row[name]) for name in ("run_id", "task_run_id")}
    return {**plain, **runs, **{name: row[name] for name in TOKENS}, **money}
