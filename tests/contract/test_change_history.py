from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import orjson
import pytest

from services.underwriting_worker.storage import Attempt, Event, Spent, UnderwritingStorage
from shared.contract.ownership import role_of
from shared.contract.underwriting import Decision, review_id, tool_call_id, workflow_id
from shared.db.connecting import connect
from shared.db.pool import Database
from tests.support.postgres import PostgresServer

TABLES = ("agent_runs", "agent_messages", "agent_tool_calls", "agent_review_decisions", "events", "metrics")
_LINE = re.compile(r"^table (?P<table>\S+): (?P<verb>INSERT|UPDATE|DELETE): (?P<rest>.*)$", re.DOTALL)
_VALUE = re.compile(r"(?P<name>\w+)\[[^:]*?\]:(?P<value>'(?:[^']|'')*'|\S+)")

Row = dict[str, str]


class Replica:
    """What a consumer of the change feed knows: every row now, and every version that it had."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.history: list[tuple[str, str, Row | None, Row | None]] = []

    def apply(self, line: str) -> None:
        """One change; it must carry its whole old row, or there is nothing to compare."""
        found = _LINE.match(line)
        if found is None or not found["table"].startswith("agent_ops."):
            return
        table, verb, rest = found["table"], found["verb"], found["rest"]
        old: Row | None = None
        if verb == "UPDATE":
            before, marker, rest = rest.removeprefix("old-key: ").partition(" new-tuple: ")
            assert marker, f"{table}: an update without its old row"
            old = _row(before)
        new = None if verb == "DELETE" else _row(rest)
        gone = _row(rest) if verb == "DELETE" else old
        if gone is not None:
            known = self.rows.pop((table, _key(gone)))
            # The decoder leaves NULLs out of old rows.
            assert {name: value for name, value in known.items() if value != "null"} == gone, table
        if new is not None:
            if old is not None:
                # A large value that did not change travels in the old row only.
                new = {name: old[name] if value == "unchanged-toast-datum" else value for name, value in new.items()}
            self.rows[table, _key(new)] = new
        self.history.append((table, verb, gone, new))


def _row(text: str) -> Row:
    return {found["name"]: found["value"] for found in _VALUE.finditer(text)}


def _key(row: Row) -> str:
    """The first column is the key in every table of the record."""
    return next(iter(row.values()))


@pytest.fixture
def logical() -> Iterator[PostgresServer]:
    """A server whose write-ahead log can be decoded."""
    server = PostgresServer.create(18, wal_level="logical", synchronous_commit="on")
    yield server
    server.destroy()


@pytest.fixture
async def feed(logical: PostgresServer) -> AsyncIterator[tuple[asyncpg.Connection, UnderwritingStorage]]:
    """A record, and a slot that has seen nothing of it yet."""
    server = logical
    await server.make_template()
    owner = await connect(server.url(), name="test-owner")
    pool = Database(server.url(role_of("underwriting_worker")), name="test")
    await pool.open()
    await owner.execute("SELECT pg_create_logical_replication_slot('feed', 'test_decoding')")
    try:
        yield owner, UnderwritingStorage(pool, "test")
    finally:
        await pool.close()
        await owner.close()


async def test_t_12_a_consumer_of_the_change_feed_rebuilds_every_row_and_its_history(
    feed: tuple[asyncpg.Connection, UnderwritingStorage],
) -> None:
    owner, storage = feed
    run = uuid4()
    await _make_run(owner, run)
    large = {"notes": "".join(chr(33 + n % 90) * 7 + str(n) for n in range(40_000))}
    await _live(storage, run, large)
    await owner.execute("DELETE FROM agent_ops.metrics WHERE run_id = $1 AND activity = 'end_run'", run)

    replica = Replica()
    for change in await owner.fetch("SELECT data FROM pg_logical_slot_get_changes('feed', NULL, NULL)"):
        replica.apply(change["data"])

    for table in TABLES:
        stored = await owner.fetch(f"SELECT * FROM agent_ops.{table} WHERE run_id = $1", run)
        rebuilt = [row for (name, _), row in replica.rows.items() if name == f"agent_ops.{table}"]
        assert len(rebuilt) == len(stored) > 0, table
    states = [
        (old["state"].strip("'"), new["state"].strip("'"))
        for table, verb, old, new in replica.history
        if table == "agent_ops.agent_runs" and verb == "UPDATE" and old and new
    ]
    assert states == [("starting", "running"), ("running", "awaiting_review"), ("awaiting_review", "completed")]
    tool = next(row for (name, _), row in replica.rows.items() if name == "agent_ops.agent_tool_calls")
    assert orjson.loads(tool["result"].strip("'").replace("''", "'")) == large, "a large value survives later changes"
    assert replica.history[-1][1] == "DELETE"
    assert replica.history[-1][2] is not None
    assert replica.history[-1][2]["activity"] == "'end_run'", "also a delete carries its old row"


async def _make_run(owner: asyncpg.Connection, run: UUID) -> None:
    await owner.execute(
        "INSERT INTO agent_ops.agent_runs (run_id, workflow_id, user_name, applicant, amount, purpose, model, turn_limit, "
        "request, request_digest) VALUES ($1, $2, 'loan-desk', 'sample-01', $3, 'auto', 'm', 5, '{}', '')",
        run, workflow_id(run), Decimal(100),
    )  # fmt: skip


async def _live(storage: UnderwritingStorage, run: UUID, result: dict[str, Any]) -> None:
    """A whole life of a run, as the activities write it."""

    def attempt(activity: str, step: UUID | None = None) -> Attempt:
        return Attempt(run, 1, activity, step or uuid4(), 1, 1)

    await storage.begin_turn(
        attempt("begin_turn"), 1, "t", [(uuid4(), 1, "user", "it's a request")], [Event("agent.run_started", 1, {})]
    )
    call = attempt("credit_check", tool_call_id(run, 1, 2))
    await storage.begin_tool_call(call, position=2, tool="credit_check", message=None, arguments={})
    await storage.end_tool_call(call, result, Spent(payload_bytes=1))
    await storage.database.execute(
        "UPDATE agent_ops.agent_tool_calls SET worker = 'renamed' WHERE tool_call_id = $1", call.step_id
    )
    answer = attempt("call_model", uuid4())
    await storage.begin_answer(answer, 10, "m")
    await storage.end_answer(
        answer, content="", calls=[], reading={}, raw={}, model="m", spent=Spent(1, 10, 2, 0)
    )  # fmt: skip
    review = review_id(run, 1)
    now = datetime.now(UTC)
    await storage.open_review(
        attempt("open_review"), 2, (review, now, now), recommendation={}, policy=None, events=[], answer_error=None
    )
    decision = Decision(decision_id=uuid4(), review_id=review, decision="approve", reviewer="reviewer-1")
    await storage.record_decision(
        attempt("record_decision"), decision, ("signal", "accepted", "decided", None, None), []
    )
    await storage.end_run(attempt("end_run"), 3, ("completed", "approved", None), [])
