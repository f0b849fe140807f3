"""Enqueue inside the caller's own transaction, on a plain asyncpg connection with no codec of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID, uuid4

import asyncpg
import pytest

from services.console.policy.enqueueing import request_digest
from shared.client import NewTask, enqueue, enqueue_family, enqueue_many
from shared.contract.channels import Channel
from shared.contract.errors import ConflictError, RejectedError
from shared.db.invariants import violations
from shared.testing.rows import make_agent
from shared.testing.wait import until
from tests.conftest import TestDatabase

BY_ID = "SELECT * FROM lockkeeper.tasks WHERE id = ANY ($1::uuid[]) ORDER BY id"


@pytest.fixture
async def caller(database: TestDatabase) -> AsyncIterator[asyncpg.Connection]:
    await make_agent(database.owner, max_attempts=7, tokens_per_page=100)
    connection = await asyncpg.connect(database.url("console"))
    try:
        yield connection
    finally:
        await connection.close()


async def tasks(database: TestDatabase) -> list[Any]:
    return list(await database.owner.fetch("SELECT * FROM lockkeeper.tasks ORDER BY created_at, id"))


async def test_a_task_exists_exactly_if_the_callers_change_does(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    async with caller.transaction():
        task_id = await enqueue(caller, agent="parser", input={"name": "é\x00x"}, customer="mill", labels={"a": 1})
        assert await tasks(database) == []
    (row,) = await tasks(database)
    assert (row["id"], row["input"], row["customer"], row["labels"]) == (task_id, {"name": "éx"}, "mill", {"a": 1})
    assert (row["status"], row["max_attempts"], row["deferred"], row["priority"]) == ("enqueued", 7, False, 50)
    assert (task_id.version, row["created_by"]) == (7, "lockkeeper_console")
    rolled_back = caller.transaction()
    await rolled_back.start()
    await enqueue(caller, agent="parser")
    await rolled_back.rollback()
    assert len(await tasks(database)) == 1
    assert await violations(database.owner) == []


async def test_dispatchers_hear_of_it_when_the_caller_commits_and_never_of_a_rollback(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    heard: list[tuple[str, Any]] = []
    for channel in (Channel.TASK_READY, Channel.TASK_CHANGED):
        await database.owner.add_listener(
            channel.value, lambda _c, _p, name, payload: heard.append((name, json.loads(payload or "null")))
        )
    rolled_back = caller.transaction()
    await rolled_back.start()
    await enqueue(caller, agent="parser")
    await rolled_back.rollback()
    async with caller.transaction():
        task_id = await enqueue(caller, agent="parser")
        await database.owner.fetchval("SELECT 1")
        assert heard == []
    await until(lambda: len(heard) == 2)
    assert heard == [(Channel.TASK_READY.value, ["parser"]), (Channel.TASK_CHANGED.value, [str(task_id)])]
    await enqueue_many(caller, [NewTask(agent="parser") for _ in range(600)])
    await until(lambda: len(heard) == 4)
    assert heard[3] == (Channel.TASK_CHANGED.value, None)
    await enqueue_many(caller, [NewTask(agent="parser") for _ in range(1600)])
    await until(lambda: len(heard) == 6)
    assert heard[4:] == [(Channel.TASK_READY.value, ["parser"]), (Channel.TASK_CHANGED.value, None)]


async def test_a_key_stands_for_one_task(database: TestDatabase, caller: asyncpg.Connection) -> None:
    first = await enqueue(caller, agent="parser", input={"n": 1, "m": 2}, idempotency_key="k")
    assert await enqueue(caller, agent="parser", input={"m": 2, "n": 1}, idempotency_key="k") == first
    async with caller.transaction():
        with pytest.raises(ConflictError) as refused:
            await enqueue(caller, agent="parser", input={"n": 2}, idempotency_key="k")
        assert refused.value.reason == "key_reused"
        # The caller's transaction is still good.
        await enqueue(caller, agent="parser", idempotency_key="other")
    assert len(await tasks(database)) == 2


async def test_the_same_key_at_once_from_many_connections_is_one_task(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    async def once() -> UUID:
        connection = await asyncpg.connect(database.url("console"))
        try:
            return await enqueue(connection, agent="parser", idempotency_key="k")
        finally:
            await connection.close()

    assert len(set(await asyncio.gather(*(once() for _ in range(8))))) == 1
    assert len(await tasks(database)) == 1
    assert not caller.is_closed()


async def test_the_same_key_waits_for_an_uncommitted_holder(database: TestDatabase, caller: asyncpg.Connection) -> None:
    other = await asyncpg.connect(database.url("console"))
    held = other.transaction()
    await held.start()
    first = await enqueue(other, agent="parser", idempotency_key="k")
    second = asyncio.create_task(enqueue(caller, agent="parser", idempotency_key="k"))
    await until(lambda: database.owner.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
    await held.rollback()
    assert await second != first
    await other.close()


async def test_many_go_in_one_statement_and_start_in_their_order(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    await make_agent(database.owner, "other")
    keyed = await enqueue(caller, agent="other", input={"n": 3}, idempotency_key="3")
    wanted = [
        NewTask(agent=("parser", "other")[n % 2], input={"n": n}, idempotency_key=str(n) if n % 3 == 0 else None)
        for n in range(1, 50)
    ]
    ids = await enqueue_many(caller, [*wanted, wanted[2]])
    assert ids[2] == ids[49] == keyed
    rows = {row["id"]: row for row in await tasks(database)}
    assert [rows[each]["input"]["n"] for each in ids] == [*range(1, 50), 3]
    fresh = [each for each in ids if each != keyed]
    assert fresh == sorted(fresh)


async def test_each_task_keeps_its_own_values_whatever_the_others_say(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    """What all say alike, or none says, is sent once or not at all."""
    await make_agent(database.owner, "reader")
    later = datetime(2030, 1, 1, tzinfo=UTC)
    plain = NewTask(agent="parser", priority=70)
    full = NewTask(agent="reader", customer="mill", priority=10, idempotency_key="k", available_at=later, max_attempts=2,
                   labels={"a": 1}, estimated_tokens=9, document_id=uuid4())  # fmt: skip
    for wanted in ([plain, plain], [full], [plain, replace(full, idempotency_key="l"), plain]):
        ids = await enqueue_many(caller, wanted)
        found = {row["id"]: row for row in await tasks(database)}
        for task_id, task in zip(ids, wanted, strict=True):
            row = found[task_id]
            names = ("agent", "customer", "priority", "idempotency_key", "labels", "estimated_tokens", "document_id")
            assert [row[name] for name in names] == [getattr(task, name) for name in names]
            assert (row["available_at"], row["deferred"]) == (
                (task.available_at, True) if task.available_at else (row["created_at"], False)
            )
            assert row["max_attempts"] == (task.max_attempts or 7)


ODD = ("\t", "\\N", "a\\tb\\\\", "line\nend\r", '"quoted"', "é\x00😀", "\ud800", "{}")


async def test_thousands_go_by_copy_and_are_the_same_tasks(database: TestDatabase, caller: asyncpg.Connection) -> None:
    """With whatever their texts hold, in their order, and for a caller whose codecs are its own."""
    await caller.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads, format="text")
    wanted = [
        NewTask(agent="parser", input={odd: [odd, number]}, customer=odd, labels={"odd": odd}, priority=number % 3)
        for number in range(250)
        for odd in ODD
    ]
    copied = await enqueue_many(caller, wanted)
    assert copied == sorted(set(copied))
    assert {(each.version, each.variant) for each in copied} == {(7, RFC_4122)}
    rows = await database.owner.fetch("SELECT * FROM lockkeeper.tasks ORDER BY id")
    assert [row["id"] for row in rows] == copied
    few = await enqueue_many(caller, wanted[:8])
    for one, other in zip(rows[:8], await database.owner.fetch(BY_ID, few), strict=True):
        mine, others = ({**row, "id": 0, "created_at": 0, "available_at": 0} for row in (one, other))
        assert mine == others
    assert {row["created_at"] for row in rows} == {rows[0]["available_at"]}
    assert await violations(database.owner) == []


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        ({"agent": "nobody"}, "unknown_agent"),
        ({"agent": "No Agent"}, "unknown_agent"),
        ({"priority": 101}, "bad_value"),
        ({"input": {"x": object()}}, "bad_value"),
    ],
    ids=["unknown agent", "no agent's name", "priority", "no JSON"],
)
async def test_one_bad_task_among_thousands_leaves_none_and_the_transaction_lives_on(
    database: TestDatabase, caller: asyncpg.Connection, spoiled: dict[str, Any], reason: str
) -> None:
    wanted = [NewTask(agent="parser") for _ in range(1500)]
    wanted[1200] = replace(wanted[1200], **spoiled)
    async with caller.transaction():
        await enqueue(caller, agent="parser", input={"before": True})
        with pytest.raises(RejectedError) as refused:
            await enqueue_many(caller, wanted)
        await enqueue(caller, agent="parser", input={"after": True})
    assert refused.value.reason == reason
    assert [row["input"] for row in await tasks(database)] == [{"before": True}, {"after": True}]


async def test_a_conflict_among_many_is_one_error(database: TestDatabase, caller: asyncpg.Connection) -> None:
    await enqueue(caller, agent="parser", input={"n": 0}, idempotency_key="k")
    async with caller.transaction():
        await enqueue(caller, agent="parser")
        with pytest.raises(ConflictError):
            await enqueue_many(caller, [NewTask(agent="parser"), NewTask(agent="parser", idempotency_key="k")])
    assert len(await tasks(database)) == 2


async def test_estimates_come_from_the_document(database: TestDatabase, caller: asyncpg.Connection) -> None:
    async def document(pages: int | None, size: int) -> UUID:
        found: UUID = await database.owner.fetchval(
            "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, pages, uploaded_by) "
            "VALUES ('a.pdf', $1, '', $2, $3, 'me') RETURNING id",
            str(uuid4()), size, pages,
        )  # fmt: skip
        return found

    await enqueue(caller, agent="parser", document_id=await document(12, 1))
    await enqueue(caller, agent="parser", document_id=await document(None, 300_000))
    await enqueue(caller, agent="parser", document_id=await document(3, 1), estimated_tokens=5)
    await enqueue(caller, agent="parser")
    assert [row["estimated_tokens"] for row in await tasks(database)] == [1_200, 500, 5, None]


async def test_a_later_start_keeps_the_task_out_of_the_claim(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await enqueue(caller, agent="parser", available_at=later)
    await enqueue(caller, agent="parser", available_at=datetime.now(UTC) - timedelta(hours=1))
    assert [row["deferred"] for row in await tasks(database)] == [True, False]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"agent": "nobody"}, "nobody"),
        ({"agent": "Not A Name"}, "agent"),
        ({"priority": 101}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"estimated_tokens": 0}, "estimated_tokens"),
        ({"available_at": datetime(2030, 1, 1)}, "available_at"),  # noqa: DTZ001 - the fault
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"input": {"x": object()}}, "input"),
    ],
)
async def test_what_does_not_fit_is_refused_and_the_transaction_lives_on(
    database: TestDatabase, caller: asyncpg.Connection, wrong: dict[str, Any], word: str
) -> None:
    async with caller.transaction():
        with pytest.raises(RejectedError, match=word):
            await enqueue(caller, **({"agent": "parser"} | wrong))
        await enqueue(caller, agent="parser")
    assert len(await tasks(database)) == 1


async def test_a_login_without_the_right_cannot_enqueue(database: TestDatabase, caller: asyncpg.Connection) -> None:
    connection = await asyncpg.connect(database.url("notifier"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await enqueue(connection, agent="parser")
    await connection.close()
    assert not caller.is_closed()


async def test_the_api_and_the_client_make_one_fingerprint(database: TestDatabase, caller: asyncpg.Connection) -> None:
    """A task that the API enqueued under a key is found by the client, and the other way round."""
    await enqueue(caller, agent="parser", input={"n": 1}, idempotency_key="k")
    (row,) = await tasks(database)
    body = {
        "agent": "parser", "document_id": None, "customer": None, "priority": 50, "available_at": None,
        "max_attempts": None, "labels": {}, "input": {"n": 1},
    }  # fmt: skip
    assert row["request_digest"] == request_digest(body)


async def test_ids_as_the_driver_gives_them_go_with_a_key(database: TestDatabase, caller: asyncpg.Connection) -> None:
    document = await database.owner.fetchval(
        "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, uploaded_by) "
        "VALUES ('a', '/a', 'x', 1, 'test') RETURNING id"
    )
    first = await enqueue(caller, agent="parser", document_id=document, idempotency_key="k")
    assert await enqueue(caller, agent="parser", document_id=UUID(str(document)), idempotency_key="k") == first


async def test_a_family_is_enqueued_as_a_whole_or_not_at_all(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    parent = NewTask(agent="parser", gather="all_completed", idempotency_key="book")
    pages = [NewTask(agent="parser", input={"page": number}) for number in range(3)]
    rolled_back = caller.transaction()
    await rolled_back.start()
    await enqueue_family(caller, parent, pages)
    await rolled_back.rollback()
    with pytest.raises(RejectedError):
        await enqueue_family(caller, parent, [*pages, NewTask(agent="nobody")])
    assert await tasks(database) == []
    async with caller.transaction():
        parent_id, children = await enqueue_family(caller, parent, pages)
    rows = {row["id"]: row for row in await tasks(database)}
    assert [rows[each]["input"]["page"] for each in children] == [0, 1, 2]
    assert {rows[each]["parent_task_id"] for each in children} == {parent_id}
    assert parent_id < min(children)
    # The key stands for the whole family: nobody gets a second one, and nothing is added to it.
    assert await enqueue_family(caller, parent, pages) == (parent_id, [])
    assert len(await tasks(database)) == 4
    assert await violations(database.owner) == []


async def test_a_child_comes_to_a_parent_that_waits_and_to_no_other(
    database: TestDatabase, caller: asyncpg.Connection
) -> None:
    parent, (first,) = await enqueue_family(
        caller, NewTask(agent="parser", gather="any_completed"), [NewTask(agent="parser", idempotency_key="first")]
    )
    second = await enqueue(caller, agent="parser", parent_task_id=parent)
    assert await enqueue(caller, agent="parser", parent_task_id=parent, idempotency_key="first") == first
    for wrong in (uuid4(), second):
        with pytest.raises(RejectedError, match="is no parent"):
            await enqueue(caller, agent="parser", parent_task_id=wrong)
    for name, value in {"gather": "some", "available_at": datetime.now(UTC), "parent_task_id": parent}.items():
        with pytest.raises(RejectedError, match=f"^{name}"):
            await enqueue(caller, **{"agent": "parser", "gather": "all_ended", name: value})
    await database.owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'cancelled', finished_at = now(), deferred = false, verb = 'cancel', "
        "version = version + 1"
    )
    with pytest.raises(ConflictError, match="has ended as cancelled"):
        await enqueue(caller, agent="parser", parent_task_id=parent)
    # Who asks again for a child that stands is told of it all the same.
    assert await enqueue(caller, agent="parser", parent_task_id=parent, idempotency_key="first") == first
    assert len(await tasks(database)) == 3
