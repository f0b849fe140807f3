"""What operators do to tasks, for one task and for many alike: lock, decide, write, record, then send notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from services.console.metrics import OPERATOR_ACTIONS
from services.console.policy.operating import ELIGIBLE, Action, forbids
from services.console.storage.operating import Eligible, OperatingStorage
from shared.contract.channels import Channel
from shared.contract.errors import MissingError
from shared.contract.lifecycle import TERMINAL
from shared.contract.task_filter import TaskFilter
from shared.db.notes import Notes
from shared.db.pool import Connection
from shared.runtime.http.problems import StateConflictError

BATCH = 200

Task = Mapping[str, Any]


@dataclass(slots=True)
class Done:
    """What an action did: the tasks to show for those it was asked for, and whom to wake."""

    shown: dict[UUID, UUID] = field(default_factory=dict)
    """From each task that was acted on to the task that shows the effect: itself, or its new copy."""
    changed: int = 0
    agents: set[str] = field(default_factory=set)
    unwanted_attempts: list[UUID] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wish:
    """An action with what belongs to it."""

    action: Action
    actor: str
    priority: int | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tasks that a wish is about: a filter, and ids or reasons of failure if given."""

    filter: TaskFilter
    ids: Sequence[UUID] | None = None
    reasons: Sequence[str] | None = None


class Operator:
    """Carries out wishes."""

    def __init__(self, storage: OperatingStorage, notes: Notes) -> None:
        self._storage = storage
        self._notes = notes

    async def act_on_one(self, wish: Wish, task_id: UUID) -> UUID:
        """The id of the task that shows the effect.

        Raises MissingError without such a task, StateConflictError when its state forbids the action.
        """
        done, found, refused = await self._act(wish, [task_id])
        if not found:
            raise MissingError(f"There is no task {task_id}.")
        if refused and refused[0][0]["id"] == task_id:
            task, why = refused[0]
            raise StateConflictError(why, state={"status": task["status"], "version": task["version"]})
        return done.shown.get(task_id, task_id)

    async def act_on_many(self, wish: Wish, chosen: Chosen) -> tuple[int, int]:
        """How many tasks the wish fitted and how many it changed, in batches of their own transactions."""
        eligible = await self._eligible(wish.action, chosen)
        matched = changed = 0
        before: tuple[datetime | None, UUID | None] = (None, None)
        while rows := await self._storage.list_eligible(eligible, before, BATCH):
            done, _, _ = await self._act(wish, [row["id"] for row in rows])
            matched += len(rows)
            changed += done.changed
            before = (rows[-1]["created_at"], rows[-1]["id"])
        return matched, changed

    async def count(self, action: Action, chosen: Chosen) -> int:
        """How many tasks the action fits now."""
        return await self._storage.count_eligible(await self._eligible(action, chosen))

    async def list_dead_letters(self, chosen: TaskFilter) -> list[dict[str, Any]]:
        """What failed and was not tried again, by agent and reason."""
        return [dict(row) for row in await self._storage.list_dead_letters(chosen)]

    async def _eligible(self, action: Action, chosen: Chosen) -> Eligible:
        # Copies that a retry makes are newer than its beginning, so it never meets its own work.
        up_to = await self._storage.read_clock()
        statuses = sorted(ELIGIBLE[action])
        return Eligible(chosen.filter, statuses, chosen.ids, action != "retry", up_to, chosen.reasons)

    async def _act(self, wish: Wish, ids: list[UUID]) -> tuple[Done, list[Task], list[tuple[Task, str]]]:
        async def work(connection: Connection) -> tuple[Done, list[Task], list[tuple[Task, str]]]:
            await self._storage.act_as(connection, wish.actor)
            await self._storage.lock_tasks(connection, ids)
            found = await self._storage.read_tasks(connection, ids)
            if wish.action == "cancel":
                found += await self._children(connection, found)
            judged = [(task, forbids(wish.action, task, task["now"])) for task in found]
            allowed = [task for task, why in judged if why is None]
            done = await self._write(connection, wish, allowed) if allowed else Done()
            if done.audit:
                await self._storage.record_actions(connection, wish.actor, wish.action, done.audit)
            return done, found, [(task, why) for task, why in judged if why is not None]

        done, found, refused = await self._storage.database.atomically(work)
        self._tell(done)
        OPERATOR_ACTIONS.labels(wish.action).inc(done.changed)
        return done, found, refused

    async def _children(self, connection: Connection, tasks: list[Task]) -> list[Task]:
        """The open children of those tasks that are parents, held; they are cancelled with them."""
        parents = [task["id"] for task in tasks if task["gather"] is not None]
        named = {task["id"] for task in tasks}
        children = await self._storage.list_open_children(connection, parents) if parents else []
        children = [each for each in children if each not in named]
        if not children:
            return []
        await self._storage.lock_tasks(connection, children)
        return await self._storage.read_tasks(connection, children)

    async def _write(self, connection: Connection, wish: Wish, tasks: list[Task]) -> Done:
        match wish.action:
            case "cancel":
                return await self._cancel(connection, tasks)
            case "reprioritise":
                return await self._reprioritise(connection, tasks, wish.priority or 0)
            case "retry":
                waiting = [task for task in tasks if task["status"] not in TERMINAL]
                ended = [task for task in tasks if task["status"] in TERMINAL]
                done = await self._hasten(connection, waiting)
                return await self._redo(connection, wish, ended, "retried", done)
            case "reprocess":
                return await self._redo(connection, wish, tasks, "reprocessed", Done())

    async def _cancel(self, connection: Connection, tasks: list[Task]) -> Done:
        ended = await self._storage.cancel_tasks(connection, [task["id"] for task in tasks])
        attempts = [task["attempt_id"] for task in tasks if task["attempt_id"] is not None]
        unwanted = await self._storage.cancel_attempts(connection, attempts) if attempts else []
        done = _done(tasks, ended, lambda _: {"status": "cancelled"})
        done.unwanted_attempts = [row["id"] for row in unwanted]
        return done

    async def _reprioritise(self, connection: Connection, tasks: list[Task], priority: int) -> Done:
        moved = await self._storage.reprioritise_tasks(connection, [task["id"] for task in tasks], priority)
        return _done(tasks, moved, lambda task: {"status": task["status"], "priority": priority})

    async def _hasten(self, connection: Connection, tasks: list[Task]) -> Done:
        if not tasks:
            return Done()
        moved = await self._storage.hasten_tasks(connection, [task["id"] for task in tasks])
        return _done(tasks, moved, lambda task: {"status": task["status"], "available_at": task["now"]})

    async def _redo(self, connection: Connection, wish: Wish, tasks: list[Task], reason: str, done: Done) -> Done:
        if not tasks:
            return done
        rows = await self._storage.redo_tasks(
            connection, [task["id"] for task in tasks], wish.agent, wish.actor, reason
        )
        by_id = {task["id"]: task for task in tasks}
        for row in rows:
            done.shown[row["source_id"]] = row["id"]
            if row["is_new"]:
                done.changed += 1
                done.agents.add(row["agent"])
                after = {"task": str(row["id"]), "agent": row["agent"], "status": "enqueued"}
                done.audit.append(_entry(by_id[row["source_id"]], after))
        return done

    def _tell(self, done: Done) -> None:
        if done.changed:
            self._notes.send(Channel.TASK_CHANGED, {*done.shown.values(), *done.shown})
            self._notes.send(Channel.TASK_READY, sorted(done.agents))
        if done.unwanted_attempts:
            self._notes.send(Channel.CANCEL_REQUESTED, done.unwanted_attempts)


def _done(tasks: list[Task], moved: Iterable[Task], after: Callable[[Task], dict[str, object]]) -> Done:
    by_id = {task["id"]: task for task in tasks}
    done = Done(shown={task["id"]: task["id"] for task in tasks})
    for row in moved:
        done.changed += 1
        done.agents.add(row["agent"])
        done.audit.append(_entry(by_id[row["id"]], after(by_id[row["id"]])))
    return done


def _entry(task: Task, after: Mapping[str, object]) -> dict[str, Any]:
    before = {name: task[name] for name in ("status", "agent", "priority", "attempt", "available_at", "version")}
    return {"target": f"task/{task['id']}", "before": before, "after": dict(after)}
