from __future__ import annotations

from uuid import UUID, uuid4

import asyncpg
import pytest

from services.underwriting_worker.storage import Attempt, Spent
from shared.contract.errors import WriteOutcome
from shared.contract.underwriting import tool_call_id
from tests.support.underwriting import Underwriting


def attempt(run: UUID, number: int, round_number: int = 1) -> Attempt:
    return Attempt(run, 1, "credit_check", tool_call_id(run, 1, 2), round_number, number)


async def begin(desk: Underwriting, one: Attempt) -> object:
    storage = desk.parts().storage
    return await storage.begin_tool_call(one, position=2, tool="credit_check", message=None, arguments={})


async def test_t_09_an_attempt_that_outlived_its_time_cannot_overwrite_its_successor(desk: Underwriting) -> None:
    storage = desk.parts().storage
    run = uuid4()
    first, second = attempt(run, 1), attempt(run, 2)
    assert await begin(desk, first) is None
    assert await begin(desk, second) is None
    assert await storage.end_tool_call(first, {"from": 1}, Spent()) is WriteOutcome.NO_OP
    assert await storage.end_tool_call(second, {"from": 2}, Spent()) is WriteOutcome.APPLIED
    assert await storage.end_tool_call(first, {"from": 1}, Spent()) is WriteOutcome.NO_OP
    assert await storage.end_tool_call(second, {"from": 2}, Spent()) is WriteOutcome.NO_OP
    found = await begin(desk, attempt(run, 3))
    assert found is not None, "a call that has ended is given again, not made again"
    (call,) = await desk.rows("agent_tool_calls", run)
    assert (call["state"], call["result"]) == ("succeeded", {"from": 2})
    outcomes = [row["outcome"] for row in await desk.rows("metrics", run, "fence")]
    assert outcomes == ["succeeded", "succeeded", "running"], "every attempt stands in the metrics"


async def test_t_11_a_different_end_is_a_conflict_and_the_first_one_stays(desk: Underwriting) -> None:
    storage = desk.parts().storage
    run = uuid4()
    one = attempt(run, 1)
    await begin(desk, one)
    await storage.end_tool_call(one, {}, Spent())
    failed = await storage.fail_tool_call(
        Attempt(run, 1, "record_tool_failure", uuid4(), 1, 1), call=one.step_id, position=2, tool="credit_check",
        message=None, error={"reason": "timed_out"},
    )  # fmt: skip
    assert failed is WriteOutcome.CONFLICT
    assert [call["state"] for call in await desk.rows("agent_tool_calls", run)] == ["succeeded"]
    with pytest.raises(asyncpg.PostgresError) as refused:
        await desk.database.owner.execute("UPDATE agent_ops.agent_tool_calls SET state = 'running', finished_at = NULL")
    assert refused.value.sqlstate == "LK001"


async def test_a_call_that_was_lost_in_its_third_round_can_be_ended(desk: Underwriting) -> None:
    storage = desk.parts().storage
    run = uuid4()
    lost = attempt(run, 3, round_number=3)
    await begin(desk, lost)
    failed = await storage.fail_tool_call(
        Attempt(run, 1, "record_tool_failure", uuid4(), 1, 1), call=lost.step_id, position=2, tool="credit_check",
        message=None, error={"reason": "timed_out"},
    )  # fmt: skip
    assert failed is WriteOutcome.APPLIED
    assert await storage.end_tool_call(lost, {}, Spent()) is WriteOutcome.NO_OP


async def test_t_11_a_run_that_has_ended_takes_no_other_end(desk: Underwriting) -> None:
    storage = desk.parts().storage
    run, _ = await desk.insert()
    step = Attempt(run, 1, "end_run", uuid4(), 1, 1)
    assert await storage.end_run(step, 5, ("completed", "approved", None), []) is WriteOutcome.APPLIED
    assert await storage.end_run(step, 5, ("completed", "approved", None), []) is WriteOutcome.NO_OP
    assert await storage.end_run(step, 4, ("cancelled", "cancelled", None), []) is WriteOutcome.NO_OP
    assert await storage.end_run(step, 6, ("cancelled", "cancelled", None), []) is WriteOutcome.CONFLICT
    assert await storage.end_run(Attempt(uuid4(), 1, "end_run", uuid4(), 1, 1), 1, ("failed", "failed", None), []) is (
        WriteOutcome.MISSING
    )
