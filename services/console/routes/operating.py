"""What operators may do to tasks, one by one or by filter."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from services.console.messages.answers import BulkAnswer, DeadLetters, TaskDetail
from services.console.messages.requests import BulkRequest, ChangeTaskRequest, ReprocessRequest
from services.console.routes.actions import Chosen, Operator, Wish
from services.console.routes.given import API, PROBLEMS, Actor, Filter, Json
from services.console.routes.tasks import read_detail
from services.console.storage.tasks import TaskStorage
from shared.contract.errors import RejectedError
from shared.contract.task_filter import PARAMETERS, TaskFilter


class OperatingRoutes:
    """`/tasks/{id}/…` and `/tasks/bulk`."""

    def __init__(self, storage: TaskStorage, operator: Operator) -> None:
        self._storage = storage
        self._operator = operator

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["tasks"], responses=PROBLEMS)
        router.add_api_route("/tasks/bulk", self.bulk, methods=["POST"], response_model=BulkAnswer)
        router.add_api_route("/dead-letters", self.dead_letters, methods=["GET"], response_model=DeadLetters)
        router.add_api_route("/tasks/{task_id}", self.change, methods=["PATCH"], response_model=TaskDetail)
        for verb in (self.cancel, self.retry, self.reprocess):
            path = f"/tasks/{{task_id}}/{verb.__name__}"
            router.add_api_route(path, verb, methods=["POST"], response_model=TaskDetail)
        return router

    async def bulk(self, body: BulkRequest, actor: Actor) -> Response:
        """Act on every task that the filter means and whose state allows it; a dry run only counts them."""
        chosen = _bulk_filter(body)
        if body.agent is not None:
            await self._check_agent(body.agent)
        if body.dry_run:
            matched, changed = await self._operator.count(body.action, chosen), 0
        else:
            wish = Wish(body.action, actor, body.priority, body.agent)
            matched, changed = await self._operator.act_on_many(wish, chosen)
        return Json({"action": body.action, "dry_run": body.dry_run, "matched": matched, "changed": changed})

    async def dead_letters(self, chosen: Filter) -> Response:
        """What failed for good and was not tried again, by agent and reason; `/tasks/bulk` redrives it by reason.

        Of the filter, agents, customers and times count.
        """
        return Json({"dead_letters": await self._operator.list_dead_letters(chosen)})

    async def change(self, task_id: UUID, body: ChangeTaskRequest, actor: Actor) -> Response:
        """Change the priority of a task that has not ended."""
        return await self._act(Wish("reprioritise", actor, priority=body.priority), task_id)

    async def cancel(self, task_id: UUID, actor: Actor) -> Response:
        """Cancel a task that has not ended; its run is cancelled too."""
        return await self._act(Wish("cancel", actor), task_id)

    async def retry(self, task_id: UUID, actor: Actor) -> Response:
        """Try a failed or cancelled task again as a new task, which is answered; a waiting one starts now."""
        return await self._act(Wish("retry", actor), task_id)

    async def reprocess(self, task_id: UUID, actor: Actor, body: ReprocessRequest | None = None) -> Response:
        """Do an ended task anew as a new task, which is answered; perhaps with another agent."""
        agent = None if body is None else body.agent
        if agent is not None:
            await self._check_agent(agent)
        return await self._act(Wish("reprocess", actor, agent=agent), task_id)

    async def _act(self, wish: Wish, task_id: UUID) -> Response:
        shown = await self._operator.act_on_one(wish, task_id)
        return Json(await read_detail(self._storage, shown))

    async def _check_agent(self, agent: str) -> None:
        async with self._storage.database.connection() as connection:
            if await self._storage.read_enqueue_terms(connection, agent, None) is None:
                raise RejectedError(f"agent: there is no agent {agent!r}", reason="unknown_agent")


def _bulk_filter(body: BulkRequest) -> Chosen:
    """The filter of a bulk action. An empty one is refused: nobody means every task by leaving something out."""
    unknown = [name for name in body.filter if name not in {*PARAMETERS, "id", "reason", "all"}]
    if unknown:
        raise RejectedError(f"filter: {unknown[0]!r} is no filter", reason="bad_filter")
    pairs: list[tuple[str, str]] = []
    for name, value in body.filter.items():
        pairs += [(name, each) for each in (value if isinstance(value, list) else [value]) if each is not None]
    chosen = TaskFilter.parse(pairs)
    given = [value for name, value in pairs if name == "id"]
    try:
        ids = [UUID(each) for each in given] or None
    except ValueError:
        raise RejectedError("filter: an id is not valid", reason="bad_filter") from None
    reasons = [value for name, value in pairs if name == "reason"] or None
    if chosen.is_empty and ids is None and reasons is None and ("all", "true") not in pairs:
        raise RejectedError('filter: is empty; {"all": "true"} means every task', reason="bad_filter")
    return Chosen(chosen, ids, reasons)
