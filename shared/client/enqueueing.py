"""Enqueue one task or many in one statement, inside the caller's transaction."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, get_args
from uuid import UUID

import orjson

from shared.contract.channels import Channel
from shared.contract.errors import ConflictError, RejectedError, TransientError
from shared.contract.ids import uuid7s
from shared.contract.lifecycle import TaskStatus
from shared.contract.text import clean_json, clean_text
from shared.db.notes import encode
from shared.db.pool import Connection
from shared.db.statements import load

_SQL = {name: statement.sql for name, statement in load("shared.client").items()}
_AGENT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
Gather = Literal["all_completed", "any_completed", "all_ended"]
"""When a parent completes: all its children did, one did, or whatever became of them; else it fails."""
_RULES = frozenset(get_args(Gather))
_Columns = tuple[list[Any], ...]
_KEYS, _DIGESTS = 8, 9
"""Places of the columns that are asked again when keys are taken."""
_NOTHING_SAID = (None, None, None, None, None)
_COPIED_FROM, _LINES = 1000, 500
_COPY_ESCAPES = {ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}
_NAMED_IN_NOTES = 500
"""More new tasks than this are noted as a whole: naming each would cost more than looking at everything."""


# Not frozen: in bulk that was a tenth of all that a task costs, Postgres included.
@dataclass(slots=True, kw_only=True)
class NewTask:
    """A task to enqueue. Priority is 0 to 100, higher first; without `available_at` it may start at once.

    The same idempotency key and content stand for the same task as long as it is kept. `estimated_tokens` is worked out
    from the document, or is the agent's default; `max_attempts` is the agent's unless given.
    """

    agent: str
    input: dict[str, Any] = field(default_factory=dict)
    document_id: UUID | None = None
    customer: str | None = None
    priority: int = 50
    idempotency_key: str | None = None
    available_at: datetime | None = None
    max_attempts: int | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    estimated_tokens: int | None = None
    parent_task_id: UUID | None = None
    gather: Gather | None = None
    """Makes it a parent: no work of its own; it ends by this rule when its children have ended."""


async def enqueue(
    connection: Connection,
    *,
    agent: str,
    input: dict[str, Any] | None = None,  # noqa: A002 - the column's name
    document_id: UUID | None = None,
    customer: str | None = None,
    priority: int = 50,
    idempotency_key: str | None = None,
    available_at: datetime | None = None,
    max_attempts: int | None = None,
    labels: dict[str, Any] | None = None,
    estimated_tokens: int | None = None,
    parent_task_id: UUID | None = None,
    gather: Gather | None = None,
) -> UUID:
    """The id of the new task, or of the one that the idempotency key stands for already.

    Belongs to the connection's transaction; dispatchers are told when it commits. Raises RejectedError for a
    value that does not fit or an agent that does not exist, ConflictError for a key that stands for other
    content; after either the transaction is still usable. The driver's own errors pass through.
    """
    task = NewTask(
        agent=agent, input=input or {}, document_id=document_id, customer=customer, priority=priority,
        idempotency_key=idempotency_key, available_at=available_at, max_attempts=max_attempts, labels=labels or {},
        estimated_tokens=estimated_tokens, parent_task_id=parent_task_id, gather=gather,
    )  # fmt: skip
    return (await enqueue_many(connection, [task]))[0]


async def enqueue_family(
    connection: Connection, parent: NewTask, children: Iterable[NewTask]
) -> tuple[UUID, list[UUID]]:
    """The ids of a parent with its rule in `gather`, and of its children, in one transaction with the caller's.

    A parent without children ends at once, so they belong together. A parent that its idempotency key stands
    for already keeps the children that it has: none is added, and the list is empty. Errors as in `enqueue`.
    """
    if parent.gather is None:
        raise RejectedError("gather: a parent needs a rule", reason="bad_value")
    family = [parent, *children]
    # The parent's id comes before its children's: whoever locks in the order of ids locks it first.
    first, *rest = uuid7s(len(family))
    async with connection.transaction():
        (parent_id,) = await _enqueue(connection, [parent], [first])
        if parent_id != first or not rest:
            return parent_id, []
        return parent_id, await _enqueue(
            connection, [replace(each, parent_task_id=parent_id) for each in family[1:]], rest
        )


async def enqueue_many(connection: Connection, tasks: Iterable[NewTask]) -> list[UUID]:
    """The ids of these tasks in their order, which is also the order in which equals are started.

    All of them are enqueued or, when this raises, none. Errors as in `enqueue`. A thousand and more that say nothing
    but agent, customer, priority, input and labels go by COPY, however many; of others a few thousand are a good size.
    """
    wanted = list(tasks)
    # Ids in order, so that equals start in the order given; new ones, so that they land at the index's edge.
    ids = uuid7s(len(wanted))
    if len(wanted) >= _COPIED_FROM and all(map(_says_little, wanted)):
        return await _copy(connection, wanted, ids)
    return await _enqueue(connection, wanted, list(ids)) if wanted else []


async def _copy(connection: Connection, wanted: Sequence[NewTask], ids: Iterator[UUID]) -> list[UUID]:
    made: list[UUID] = []
    async with connection.transaction():
        agents = {task.agent for task in wanted}
        rows = await connection.fetch(_SQL["read_max_attempts"], list(agents))
        found: dict[str, int] = {row["name"]: row["max_attempts"] for row in rows}
        if unknown := sorted(agents - found.keys()):
            raise RejectedError(f"there is no agent {', '.join(unknown)}", reason="unknown_agent")

        async def lines() -> AsyncIterator[bytes]:
            for first in range(0, len(wanted), _LINES):
                part = wanted[first : first + _LINES]
                made.extend(islice(ids, len(part)))
                yield "".join(map(_line, part, made[first:], [found[task.agent] for task in part])).encode()
                # Postgres writes these while the next are made.
                await asyncio.sleep(0)

        await connection.copy_to_table(
            "tasks", schema_name="lockkeeper", source=lines(),
            columns=("id", "agent", "customer", "priority", "input", "labels", "max_attempts"),
        )  # fmt: skip
        await connection.fetch(_SQL["note_tasks"], *_notes(wanted, made))
    return made


def _line(task: NewTask, task_id: UUID, max_attempts: int) -> str:
    """The row in COPY's text format."""
    _check(task)
    customer = "\\N" if task.customer is None else clean_text(task.customer)[0].translate(_COPY_ESCAPES)
    # JSON has its line ends and tabs escaped already, by what COPY takes for its own escapes.
    content = _stored(task.input, "input").replace("\\", "\\\\")
    labels = _stored(task.labels, "labels").replace("\\", "\\\\") if task.labels else "{}"
    return f"{task_id.hex}\t{task.agent}\t{customer}\t{task.priority}\t{content}\t{labels}\t{max_attempts}\n"


def _says_little(task: NewTask) -> bool:
    return task.document_id is None and task.parent_task_id is None and _said_of(task) == _NOTHING_SAID


def _said_of(task: NewTask) -> tuple[Any, ...]:
    return (task.max_attempts, task.estimated_tokens, task.available_at, task.gather, task.idempotency_key)


async def _enqueue(connection: Connection, wanted: Sequence[NewTask], ids: Sequence[UUID]) -> list[UUID]:
    columns = _columns(wanted)
    has_parents = any(task.parent_task_id for task in wanted)
    if not has_parents and (len(wanted) == 1 or not columns[_KEYS]):
        return await _insert(connection, wanted, ids, columns)
    # A key that stands for other content takes back the rows beside it, and nothing of the caller's.
    async with connection.transaction():
        if has_parents:
            await _hold_parents(connection, wanted)
        return await _insert(connection, wanted, ids, columns)


async def _hold_parents(connection: Connection, tasks: Sequence[NewTask]) -> None:
    """Keep the parents of these tasks open until the caller commits."""
    wanted = {task.parent_task_id for task in tasks if task.parent_task_id is not None}
    found = {row["id"]: row for row in await connection.fetch(_SQL["lock_parents"], list(wanted))}
    for parent in wanted:
        if parent not in found or found[parent]["gather"] is None:
            raise RejectedError(f"parent_task_id: {parent} is no parent", reason="not_a_parent")
    ended = {parent: row["status"] for parent, row in found.items() if row["status"] != TaskStatus.ENQUEUED}
    late = [task for task in tasks if task.parent_task_id in ended]
    keys = [task.idempotency_key for task in late if task.idempotency_key is not None]
    # Who asks again for a child that stands gets it, however long its parent has ended.
    standing = (
        {row["idempotency_key"] for row in await connection.fetch(_SQL["find_keyed_tasks"], keys)} if keys else ()
    )
    for task in late:
        if task.idempotency_key not in standing:
            said = f"the parent {task.parent_task_id} has ended as {ended[task.parent_task_id]}"
            raise ConflictError(said, reason="parent_ended")


async def _insert(
    connection: Connection, wanted: Sequence[NewTask], ids: Sequence[UUID], columns: _Columns
) -> list[UUID]:
    answer = await connection.fetchrow(_SQL["enqueue_tasks"], ids, *columns, *_notes(wanted, ids))
    if answer is None:
        raise AssertionError("the statement gives one row")
    if answer["unknown_agents"]:
        raise RejectedError(f"there is no agent {', '.join(answer['unknown_agents'])}", reason="unknown_agent")
    if answer["taken"]:
        return await _with_standing(connection, ids, columns, frozenset(answer["taken"]))
    return list(ids)


async def _with_standing(
    connection: Connection, made: Sequence[UUID], columns: _Columns, taken: frozenset[UUID]
) -> list[UUID]:
    """The ids, where those of taken keys are the tasks that hold them."""
    asked = list(zip(made, columns[_KEYS], columns[_DIGESTS], strict=True))
    keys = [key for task_id, key, _ in asked if task_id in taken]
    found = {row["idempotency_key"]: row for row in await connection.fetch(_SQL["find_keyed_tasks"], keys)}
    ids = []
    for task_id, key, digest in asked:
        if task_id not in taken:
            ids.append(task_id)
            continue
        standing = found.get(key)
        if standing is None:
            raise TransientError(f"the task of key {key!r} was just removed", reason="key_in_use")
        if standing["request_digest"] != digest:
            raise ConflictError(f"key {key!r} stands for a task with other content", reason="key_reused")
        ids.append(standing["id"])
    return ids


def _notes(tasks: Sequence[NewTask], ids: Sequence[UUID]) -> tuple[list[str], list[str]]:
    named = [str(each) for each in ids] if len(ids) <= _NAMED_IN_NOTES else []
    pairs = [
        *((Channel.TASK_READY.value, payload) for payload in encode(task.agent for task in tasks)),
        *((Channel.TASK_CHANGED.value, payload) for payload in encode(named)),
    ]
    return [channel for channel, _ in pairs], [payload for _, payload in pairs]


def _columns(tasks: Sequence[NewTask]) -> _Columns:
    """The rows as columns in the statement's order; JSON as text, so that the caller's own codecs do not matter."""
    for task in tasks:
        _check(task)
    keys = _said([None if each.idempotency_key is None else clean_text(each.idempotency_key)[0] for each in tasks])
    return (
        _shared([task.agent for task in tasks]),
        _said([None if task.customer is None else clean_text(task.customer)[0] for task in tasks]),
        _shared([task.priority for task in tasks]),
        [_stored(task.input, "input") for task in tasks],
        _said([_stored(task.labels, "labels") if task.labels else None for task in tasks]),
        _said([task.available_at for task in tasks]),
        _said([task.max_attempts for task in tasks]),
        _said([task.document_id for task in tasks]),
        keys,
        [None if task.idempotency_key is None else request_digest(task, _content(task)) for task in tasks]
        if keys
        else [],
        _said([task.estimated_tokens for task in tasks]),
        _said([task.parent_task_id for task in tasks]),
        _said([task.gather for task in tasks]),
    )


def _said(values: list[Any]) -> list[Any]:
    """The column, empty when it says nothing: a null that is not sent costs nobody anything."""
    return [] if values.count(None) == len(values) else values


def _shared(values: list[Any]) -> list[Any]:
    """The column, or the one value of all."""
    return values[:1] if values.count(values[0]) == len(values) else values


def _content(task: NewTask) -> dict[str, Any]:
    return {"input": clean_json(task.input)[0], "labels": clean_json(task.labels)[0]}


def request_digest(task: NewTask, content: dict[str, Any]) -> str:
    """A fingerprint of what was asked for, whatever the order of its keys; the API makes the same one."""
    body = content | {
        "agent": task.agent, "document_id": task.document_id, "customer": task.customer, "priority": task.priority,
        "available_at": task.available_at, "max_attempts": task.max_attempts,
    }  # fmt: skip
    later = {"estimated_tokens": task.estimated_tokens, "parent_task_id": task.parent_task_id, "gather": task.gather}
    body |= {name: value for name, value in later.items() if value is not None}
    # What the driver gives for an id is no plain UUID to everybody.
    return hashlib.sha256(orjson.dumps(body, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _stored(value: dict[str, Any], name: str) -> str:
    """The value as JSON text that Postgres can hold."""
    try:
        text = orjson.dumps(value)
        # What orjson writes is UTF-8 and finite; only U+0000, which it escapes, would be refused.
        return (text if b"\\u0000" not in text else orjson.dumps(clean_json(value)[0])).decode()
    except (TypeError, RecursionError):
        pass
    try:
        return orjson.dumps(clean_json(value)[0]).decode()
    except (TypeError, RecursionError) as error:
        raise RejectedError(f"{name}: cannot be stored ({error})", reason="bad_value") from error


@lru_cache(maxsize=1000)
def _is_agent(name: str) -> bool:
    return _AGENT.fullmatch(name) is not None


def _check(task: NewTask) -> None:
    """Refuse what the table would refuse, before the statement ends the caller's transaction."""
    if _said_of(task) == _NOTHING_SAID and 0 <= task.priority <= 100 and _is_agent(task.agent):
        return
    faults = (
        (not _is_agent(task.agent), "agent: is no agent's name"),
        (not 0 <= task.priority <= 100, "priority: must be from 0 to 100"),
        (task.max_attempts is not None and not 1 <= task.max_attempts <= 100, "max_attempts: must be from 1 to 100"),
        (task.estimated_tokens is not None and task.estimated_tokens < 1, "estimated_tokens: must be at least 1"),
        (task.available_at is not None and task.available_at.tzinfo is None, "available_at: needs a time zone"),
        (task.gather is not None and task.gather not in _RULES, f"gather: must be one of {', '.join(sorted(_RULES))}"),
        (task.gather is not None and task.parent_task_id is not None, "parent_task_id: a parent has no parent"),
        (task.gather is not None and task.available_at is not None, "available_at: a parent is never started"),
        (task.idempotency_key is not None and not 1 <= len(task.idempotency_key) <= 400,
         "idempotency_key: must have 1 to 400 characters"),
    )  # fmt: skip
    for is_wrong, message in faults:
        if is_wrong:
            raise RejectedError(message, reason="bad_value")
