"""Several attempts in one run: each has its own turn, end, failure and callback."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from services.dispatcher.storage import DispatcherStorage
from shared.agent_kit import AgentContext, AgentResult, RejectedError, run_agent
from shared.db.connecting import connect
from shared.testing.rows import make_agent, make_tasks
from tests.support.agents import AgentWorld

pytestmark = pytest.mark.timeout(120)


async def pack(world: AgentWorld, count: int) -> tuple[UUID, list[UUID]]:
    """The attempts of as many tasks in one pack."""
    await make_agent(world.database.owner, "packer", tasks_per_run=count)
    for number in range(count):
        await make_tasks(world.database.owner, 1, agent="packer", input={"n": number})
    pool = await world.database.open("dispatcher")
    storage = DispatcherStorage(pool, "test")
    leased = [each.attempt_id for each in await storage.claim_tasks(count, 60)]
    pack_id = uuid4()
    assert set((await storage.pack_attempts(leased, pack_id)).values()) == {pack_id}
    await pool.close()
    return pack_id, leased


async def test_each_attempt_of_a_pack_has_its_own_end_in_turn(world: AgentWorld) -> None:
    async def handler(context: AgentContext) -> AgentResult:
        if context.input["n"] == 1:
            raise RejectedError("this one will never do", reason="bad_input")
        return AgentResult({"n": context.input["n"]})

    pack_id, attempts = await pack(world, 3)
    argv = ["--task_id=", "--attempt_id=", f"--pack_id={pack_id}"]
    assert await asyncio.to_thread(run_agent, handler, argv) == 0
    ends = [world.recorder.ends(each) for each in attempts]
    assert [[end.verb for end in each] for each in ends] == [["result"], ["failure"], ["result"]]
    assert [ends[n][0].body["result"] for n in (0, 2)] == [{"n": 0}, {"n": 2}]
    assert ends[1][0].body["reason"] == "bad_input"
    for each in attempts:
        told = [got.verb for got in world.recorder.received if got.attempt_id == str(each)]
        assert told[0] == "heartbeat", "its turn was not told before it was taken"


async def test_an_attempt_that_was_cancelled_before_its_turn_has_none(world: AgentWorld) -> None:
    pack_id, attempts = await pack(world, 3)
    seen: list[int] = []

    async def handler(context: AgentContext) -> AgentResult:
        seen.append(context.input["n"])
        if context.input["n"] == 0:
            await world_cancels(attempts[1])
        return AgentResult({})

    async def world_cancels(attempt: UUID) -> None:
        connection = await connect(world.database.url(), name="test-cancel")
        try:
            await connection.execute(
                "UPDATE lockkeeper.task_attempts SET status = 'cancelled', finished_at = now() WHERE id = $1", attempt
            )
        finally:
            await connection.close()

    assert await asyncio.to_thread(run_agent, handler, [f"--pack_id={pack_id}"]) == 0
    assert seen == [0, 2]
    assert world.recorder.ends(attempts[1]) == []


async def test_what_cannot_be_settled_keeps_nobody_from_their_turn(world: AgentWorld) -> None:
    pack_id, attempts = await pack(world, 2)
    world.recorder.answers = lambda got: (
        (422, {}, {}) if (got.attempt_id, got.verb) == (str(attempts[0]), "result") else None
    )

    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({})

    with pytest.raises(SystemExit, match="not settled"):
        await asyncio.to_thread(run_agent, handler, [f"--pack_id={pack_id}"])
    assert [each.verb for each in world.recorder.ends(attempts[1])] == ["result"]


def test_a_run_that_was_given_nothing_says_so(world: AgentWorld) -> None:
    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({})

    with pytest.raises(SystemExit, match="neither"):
        run_agent(handler, ["--attempt_id=", "--pack_id="])
