from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import Response

from shared.db.connecting import connect
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.support.postgres import TEMPLATE, PostgresServer
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting, says, stand_in, underwriting
from tests.support.underwriting_fixtures import POLICY

SECONDS = float(os.environ.get("LOCKKEEPER_TEST_OUTAGE_SECONDS", "8"))
"""`LOCKKEEPER_TEST_OUTAGE_SECONDS=60` is the long form."""


@pytest.fixture
async def own(temporal: TemporalServer) -> AsyncIterator[Underwriting]:
    """An underwriter whose Postgres belongs to this test and may be killed."""
    server = await asyncio.to_thread(PostgresServer.create, 18, synchronous_commit="on")
    await server.make_template()
    owner = await connect(server.url(), name="test-owner")
    await owner.execute(POLICY)
    try:
        async with underwriting(TestDatabase(server, TEMPLATE, owner), temporal.address) as desk:
            yield desk
            await desk.database.owner.close()
    finally:
        await asyncio.to_thread(server.destroy)


@asynccontextmanager
async def away(desk: Underwriting, seconds: float) -> AsyncIterator[None]:
    """Inside, the database is dead; it comes back at the end, not before the seconds are over."""
    server = desk.database.server
    await desk.database.owner.close()
    await asyncio.to_thread(server.stop, signal.SIGKILL)
    back_at = asyncio.get_running_loop().time() + seconds
    yield
    await asyncio.sleep(max(0.0, back_at - asyncio.get_running_loop().time()))
    await asyncio.to_thread(server.start)
    desk.database = TestDatabase(server, TEMPLATE, await connect(server.url(), name="test-owner"))


@pytest.mark.timeout(300)
async def test_a_database_that_is_down_for_a_while_holds_runs_at_every_stage_and_loses_nothing(
    own: Underwriting,
) -> None:
    """One run waits for a person, one is in its model call, and one begins while nobody can write it down."""
    held = asyncio.Event()

    async def slowly(body: dict[str, Any]) -> Response:
        await held.wait()
        return says(stand_in.answer(body["messages"], body["tools"]))(body)

    async with own.worker():
        waiting = await own.start()
        await own.reaches(waiting, "awaiting_review")
        own.model.script = [slowly]
        thinking = await own.start()
        await until(lambda: _asked(own, 2))
        new, request = await own.insert()

        async with away(own, SECONDS):
            held.set()
            await own.begin(new, request)
            decision = await own.signal(waiting)
            await until(lambda: _retried(own, waiting), seconds=40)

        assert await own.handle(waiting).result() == "approved"
        for run in (thinking, new):
            row = await own.reaches(run, "awaiting_review", seconds=90)
            assert (row["recommendation"]["source"], row["failed_tools"]) == ("model", 0)
            await own.decide(run)
            assert await own.handle(run).result() == "approved"

    assert [each["decision_id"] for each in await own.rows("agent_review_decisions", waiting)] == [decision]
    for run in (waiting, thinking, new):
        tools = await own.rows("agent_tool_calls", run)
        assert len(tools) == len({each["tool"] for each in tools}) == 4
        answers = [each for each in await own.rows("agent_messages", run) if each["role"] == "assistant"]
        assert [each["state"] for each in answers] == ["complete"]
    paid = await own.database.owner.fetch("SELECT attempt_id, count(*) FROM lockkeeper.cost_entries GROUP BY 1")
    assert [each["count"] for each in paid] == [1, 1, 1], "each answer is paid once"


async def _asked(desk: Underwriting, times: int) -> bool:
    return len(desk.model.asked) == times


async def _retried(desk: Underwriting, run: Any) -> bool:
    found = await desk.handle(run).describe()
    return any(each.attempt >= 3 for each in found.raw_description.pending_activities)
