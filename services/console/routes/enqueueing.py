"""Takes tasks into the queue."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from services.console.messages.requests import ChildRequest, EnqueueRequest
from services.console.metrics import ENQUEUED
from services.console.policy.enqueueing import acceptable_start, estimated_tokens, request_digest, storable
from services.console.storage.tasks import NewTask, TaskStorage
from shared.contract.channels import Channel
from shared.contract.errors import ConflictError, RejectedError, TransientError
from shared.contract.ids import uuid7
from shared.contract.lifecycle import TaskStatus
from shared.contract.stages import ENQUEUE
from shared.contract.text import clean_text
from shared.db.notes import Notes
from shared.db.pool import Connection
from shared.runtime import tracing


@dataclass(frozen=True, slots=True)
class _Content:
    """What a task brings that is not ours to understand, as Postgres can hold it."""

    input: dict[str, Any]
    labels: dict[str, Any]

    @classmethod
    def of(cls, wanted: ChildRequest) -> _Content:
        return cls(storable(wanted.input or {}, "input"), storable(dict(wanted.labels), "labels"))


class Enqueuer:
    """Enqueues a task once per idempotency key."""

    def __init__(self, storage: TaskStorage, notes: Notes) -> None:
        self._storage = storage
        self._notes = notes

    async def enqueue(self, wanted: EnqueueRequest, actor: str) -> tuple[Any, bool]:
        """The task's overview and whether it is new.

        A parent is enqueued with its children or not at all. Raises RejectedError for an unknown agent or document,
        ConflictError for a key that stands for another body, or a parent that has ended.
        """
        began, digest = time.monotonic(), _digest(wanted)

        async def work(connection: Connection) -> tuple[Any, list[UUID]]:
            standing = await self._standing(connection, wanted, digest) if _is_of_family(wanted) else None
            if standing is not None:
                return await self._storage.read_task(connection, standing), []
            if wanted.parent_task_id is not None:
                await self._hold_parent(connection, wanted.parent_task_id)
            # In order: the parent first, and equals start in the order given.
            ids = sorted(uuid7() for _ in range(1 + len(wanted.children)))
            task = replace(await self._new_task(connection, wanted, digest, actor), id=ids[0])
            if await self._storage.enqueue_task(connection, task) is None:
                standing = await self._standing(connection, wanted, digest)
                if standing is None:
                    said = "the task under this key is just being made or was removed"
                    raise TransientError(said, reason="key_in_use")
                return await self._storage.read_task(connection, standing), []
            await self._add_children(connection, wanted, ids, actor)
            return await self._storage.read_task(connection, ids[0]), ids

        # Under a key the second of two is the first, so a connection that was lost on the way is no trouble.
        row, made = await self._storage.database.atomically(work, repeatable=wanted.idempotency_key is not None)
        if made:
            agents = [wanted.agent, *(child.agent for child in wanted.children)]
            self._tell(made, agents)
            for task, agent in zip(made, agents, strict=True):
                tracing.record(ENQUEUE, task, seconds=time.monotonic() - began, agent=agent)
        return row, bool(made)

    def _tell(self, tasks: list[UUID], agents: list[str]) -> None:
        self._notes.send(Channel.TASK_READY, sorted(set(agents)))
        self._notes.send(Channel.TASK_CHANGED, tasks)
        for agent, count in Counter(agents).items():
            ENQUEUED.labels(agent).inc(count)

    async def _add_children(self, connection: Connection, wanted: EnqueueRequest, ids: list[UUID], actor: str) -> None:
        parent, *young = ids
        for child, child_id in zip(wanted.children, young, strict=True):
            task = await self._new_task(connection, child, "", actor)
            await self._storage.enqueue_task(connection, replace(task, parent_task_id=parent, id=child_id))

    async def _hold_parent(self, connection: Connection, task_id: UUID) -> None:
        parent = await self._storage.hold_parent(connection, task_id)
        if parent is None or parent["gather"] is None:
            raise RejectedError(f"parent_task_id: {task_id} is no parent", reason="not_a_parent")
        if parent["status"] != TaskStatus.ENQUEUED:
            raise ConflictError(f"The parent has ended as {parent['status']}.", reason="parent_ended")

    async def _new_task(self, connection: Connection, wanted: ChildRequest, digest: str, actor: str) -> NewTask:
        content = _Content.of(wanted)
        family = wanted if isinstance(wanted, EnqueueRequest) else None
        terms = await self._storage.read_enqueue_terms(connection, wanted.agent, wanted.document_id)
        if terms is None:
            raise RejectedError(f"agent: there is no agent {wanted.agent!r}", reason="unknown_agent")
        if wanted.document_id is not None and terms["document_id"] is None:
            raise RejectedError(f"document_id: there is no document {wanted.document_id}", reason="unknown_document")
        return NewTask(
            agent=wanted.agent,
            customer=_cleaned(wanted.customer),
            priority=wanted.priority,
            max_attempts=wanted.max_attempts,
            estimated_tokens=estimated_tokens(terms["pages"], terms["bytes"], terms["tokens_per_page"]),
            available_at=acceptable_start(wanted.available_at, terms["now"]),
            document_id=wanted.document_id,
            idempotency_key=None if family is None else _cleaned(family.idempotency_key),
            request_digest=digest,
            actor=actor,
            labels=content.labels,
            input=content.input,
            parent_task_id=None if family is None else family.parent_task_id,
            gather=None if family is None else family.gather,
        )

    async def _standing(self, connection: Connection, wanted: EnqueueRequest, digest: str) -> UUID | None:
        """The task that the key stands for; None when there is none. Raises ConflictError for another body's."""
        if wanted.idempotency_key is None:
            return None
        standing = await self._storage.read_keyed_task(connection, _cleaned(wanted.idempotency_key) or "")
        if standing is None:
            return None
        if standing["request_digest"] != digest:
            raise ConflictError("The idempotency key stands for a task with another body.", reason="key_reused")
        found: UUID = standing["id"]
        return found


def _is_of_family(wanted: EnqueueRequest) -> bool:
    return wanted.gather is not None or wanted.parent_task_id is not None


def _digest(wanted: EnqueueRequest) -> str:
    """Of the body as it was before there were families, and of what makes a family only where it is."""
    later = wanted.model_dump(include={"parent_task_id", "gather", "children"}, exclude_defaults=True, mode="json")
    body = wanted.model_dump(exclude={"idempotency_key", "input", "labels", "parent_task_id", "gather", "children"})
    return request_digest(body | asdict(_Content.of(wanted)) | later)


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean_text(text)[0]
