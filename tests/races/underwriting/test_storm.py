from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from shared.contract.underwriting import Pace
from shared.contract.underwriting_samples import SAMPLES
from shared.testing.wait import until
from tests.support.crash import start_worker, worker_environment
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting

RUNS = 24


async def _waiting(desk: Underwriting) -> int:
    query = "SELECT count(*) FROM agent_ops.agent_runs WHERE state = 'awaiting_review'"
    return int(await desk.database.owner.fetchval(query))


@pytest.mark.timeout(180)
async def test_many_runs_with_two_workers_one_killed_on_the_way_leave_no_double(
    desk: Underwriting, temporal: TemporalServer, workers: list[Any]
) -> None:
    """The short form of `./dev bench underwriting`."""
    workers += [start_worker(worker_environment(desk, temporal)) for _ in range(2)]
    await asyncio.gather(*(desk.start(SAMPLES[n % len(SAMPLES)], pace=Pace()) for n in range(RUNS)))
    await until(lambda: _at_least(desk, RUNS // 3), seconds=90)
    os.kill(workers[1].pid, signal.SIGKILL)
    await until(lambda: _at_least(desk, RUNS), seconds=120, every=0.2)
    counted = await desk.database.owner.fetchrow(
        "SELECT count(*) AS all, count(DISTINCT (run_id, tool)) AS single FROM agent_ops.agent_tool_calls"
    )
    assert counted is not None
    assert counted["all"] == counted["single"] == RUNS * 4
    assert await desk.database.owner.fetchval("SELECT count(*) FROM lockkeeper.cost_entries") == RUNS


async def _at_least(desk: Underwriting, count: int) -> bool:
    return await _waiting(desk) >= count
