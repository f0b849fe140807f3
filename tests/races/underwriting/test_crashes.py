from __future__ import annotations

import os
import signal
from typing import Any
from uuid import UUID

import pytest

from shared.testing.wait import until
from tests.support.crash import start_worker, worker_environment
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting

BOUNDARIES = (
    "begin_turn", "credit_check", "income_verification", "debt_to_income_calc", "policy_lookup", "call_model",
    "open_review", "record_decision", "end_run",
)  # fmt: skip
POINTS = [f"{activity}:{when}" for activity in BOUNDARIES for when in ("before", "after")]


async def prove(desk: Underwriting, run: UUID, point: str) -> None:
    """Same run, each effect once, attempts visible."""
    row = await desk.row(run)
    assert (row["state"], row["outcome"]) == ("completed", "approved"), point
    tools = await desk.rows("agent_tool_calls", run, "position")
    assert [(tool["tool"], tool["state"]) for tool in tools] == [
        (name, "succeeded")
        for name in ("credit_check", "income_verification", "debt_to_income_calc", "policy_lookup")
    ], point  # fmt: skip
    messages = await desk.rows("agent_messages", run, "position")
    assert [(each["role"], each["state"]) for each in messages] == [
        ("system", "complete"), ("user", "complete"), ("assistant", "complete"),
    ], point  # fmt: skip
    decisions = await desk.rows("agent_review_decisions", run)
    assert [(each["status"], each["effect"]) for each in decisions] == [("accepted", "decided")], point
    # Several tools may have to be scheduled anew after one crash; everything else happens once.
    names = [event["name"] for event in await desk.rows("events", run) if event["name"] != "agent.step_recovered"]
    assert sorted(names) == sorted(set(names)), point
    paid = await desk.database.owner.fetchval(
        "SELECT count(*) FROM lockkeeper.cost_entries WHERE attempt_id = ANY ($1)",
        [each["message_id"] for each in messages],
    )
    assert paid == 1, point
    activity, when = point.split(":")

    async def the_second_attempt_is_visible() -> bool:
        seen = [row for row in await desk.rows("metrics", run, "fence") if row["activity"] == activity]
        return bool(seen[-1]["attempt"] > 1 or seen[-1]["round"] > 1)

    # The last step's own row comes after the run's end.
    await until(the_second_attempt_is_visible, seconds=20)
    seen = [row for row in await desk.rows("metrics", run, "fence") if row["activity"] == activity]
    if when == "after" and activity in {*BOUNDARIES[1:6]}:
        assert (seen[0]["outcome"], seen[-1]["outcome"]) == ("succeeded", "reused"), point


@pytest.mark.timeout(240)
async def test_t_09_a_worker_killed_at_every_boundary_loses_and_doubles_nothing(
    desk: Underwriting, temporal: TemporalServer, workers: list[Any]
) -> None:
    """Each worker dies at its own point of its own run; the next one finishes what it left."""
    given = worker_environment(desk, temporal)
    runs: dict[str, UUID] = {}
    for point in POINTS:
        run = runs[point] = await desk.start()
        worker = start_worker(given, f"{point}:{run}")
        workers.append(worker)
        # Early decisions are kept: the run needs nobody at the right moment.
        await desk.signal(run)
        await until(lambda dead=worker: not dead.is_alive(), seconds=60)
        assert worker.exitcode == -signal.SIGKILL, point
    workers.append(start_worker(given))
    for point, run in runs.items():
        await desk.reaches(run, "completed", seconds=90)
        await prove(desk, run, point)


@pytest.mark.timeout(120)
async def test_t_09_a_worker_killed_in_the_middle_of_the_model_call_is_followed_by_one_answer(
    desk: Underwriting, temporal: TemporalServer, workers: list[Any]
) -> None:
    import asyncio

    asked = asyncio.Event()

    async def never(_: dict[str, Any]) -> Any:
        asked.set()
        await asyncio.sleep(20)

    desk.model.script = [never]
    given = worker_environment(desk, temporal)
    run = await desk.start()
    workers.append(start_worker(given))
    async with asyncio.timeout(60):
        await asked.wait()
    os.kill(workers[0].pid, signal.SIGKILL)
    workers.append(start_worker(given))
    await desk.reaches(run, "awaiting_review", seconds=60)
    calls = [row for row in await desk.rows("metrics", run, "fence") if row["activity"] == "call_model"]
    assert [row["outcome"] for row in calls] == ["lost", "succeeded"]
    assert sum(message["role"] == "assistant" for message in await desk.rows("agent_messages", run)) == 1
    os.kill(workers[1].pid, signal.SIGKILL)
    await desk.signal(run)
    workers.append(start_worker(given))
    await desk.reaches(run, "completed", seconds=60)
