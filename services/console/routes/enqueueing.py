"""Takes tasks into the queue."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from services.console.messages.requests import EnqueueRequest
from services.console.metrics import ENQUEUED
from services.console.policy.enqueueing import acceptable_start, estimated_tokens, request_digest, storable
from services.console.storage.tasks import NewTask, TaskStorage
from shared.contract.channels import Channel
from shared.contract.errors import ConflictError, RejectedError, TransientError
from shared.contract.text import clean_text
from shared.db.notes import Notes
from shared.db.pool import Connection


@dataclass(frozen=True, slots=True)
class _Content:
    """What a task brings that is not ours to understand, as Postgres can hold it."""

    input: dict[str, Any]
    labels: dict[str, Any]

    @classmethod
    def of(cls, wanted: EnqueueRequest) -> _Content:
        return cls(storable(wanted.input or {}, "input"), storable(dict(wanted.labels), "labels"))


class Enqueuer:
    """Enqueues a task once per idempotency key."""

    def __init__(self, storage: TaskStorage, notes: Notes) -> None:
        self._storage = storage
        self._notes = notes

    async def enqueue(self, wanted: EnqueueRequest, actor: str) -> tuple[Any, bool]:
        """The task's overview and whether it is new.

        Raises RejectedError for an unknown agent or document, ConflictError for a key that stands for another body.
        """
        content = _Content.of(wanted)
        digest = request_digest(wanted.model_dump(exclude={"idempotency_key", "input", "labels"}) | asdict(content))

        async def work(connection: Connection) -> tuple[Any, bool]:
            task = await self._new_task(connection, wanted, content, digest, actor)
            task_id = await self._storage.enqueue_task(connection, task)
            is_new = task_id is not None
            if task_id is None:
                task_id = await self._standing(connection, wanted, digest)
            return await self._storage.read_task(connection, task_id), is_new

        # Under a key the second of two is the first, so a connection that was lost on the way is no trouble.
        row, is_new = await self._storage.database.atomically(work, repeatable=wanted.idempotency_key is not None)
        if is_new:
            self._notes.send(Channel.TASK_READY, [wanted.agent])
            self._notes.send(Channel.TASK_CHANGED, [row["id"]])
            ENQUEUED.labels(wanted.agent).inc()
        return row, is_new

    async def _new_task(
        self, connection: Connection, wanted: EnqueueRequest, content: _Content, digest: str, actor: str
    ) -> NewTask:
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
            idempotency_key=_cleaned(wanted.idempotency_key),
            request_digest=digest,
            actor=actor,
            labels=content.labels,
            input=content.input,
        )

    async def _standing(self, connection: Connection, wanted: EnqueueRequest, digest: str) -> UUID:
        standing = await self._storage.read_keyed_task(connection, _cleaned(wanted.idempotency_key) or "")
        if standing is None:
            raise TransientError("the task under this key is just being made or was removed", reason="key_in_use")
        if standing["request_digest"] != digest:
            raise ConflictError("The idempotency key stands for a task with another body.", reason="key_reused")
        found: UUID = standing["id"]
        return found


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean_text(text)[0]
