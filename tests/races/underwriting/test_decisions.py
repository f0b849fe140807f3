from __future__ import annotations

import asyncio
import os
import random
from typing import Any
from uuid import UUID, uuid4

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from shared.contract.underwriting import Pace
from tests.support.underwriting import Underwriting

RACES, TURNS = int(os.environ.get("LOCKKEEPER_TEST_RACES", "100")), 5
"""`LOCKKEEPER_TEST_RACES=200` is the long form; each run has a race in every turn."""


async def send(desk: Underwriting, run: UUID, path: str, word: str, **named: Any) -> str:
    """What the sender learns: decided, a refusal's word, or of a signal only that it was taken."""
    try:
        if path == "signal":
            await desk.signal(run, word, **named)
            return "sent"
        return (await desk.decide(run, word, **named)).effect
    except WorkflowUpdateFailedError as error:
        return str(getattr(error.cause, "type", None))
    except RPCError as error:
        return "gone" if error.status is RPCStatusCode.NOT_FOUND else str(error)


async def race(desk: Underwriting, run: UUID, turn: int, dice: random.Random) -> int:
    """Two people, the winner's double, and somebody who is a turn late, all at once; how many must be on record."""
    await desk.reaches(run, "awaiting_review", turn=turn, seconds=150)
    words = ["request_more_info"] * 2 if turn < TURNS else ["approve", "deny"]
    paths = [dice.choice(["update", "signal"]) for _ in words]
    first, second, late = uuid4(), uuid4(), uuid4()
    calls = [
        (first, paths[0], words[0], turn, "reviewer-1"), (second, paths[1], words[1], turn, "reviewer-2"),
        (first, "signal", words[0], turn, "reviewer-1"), (late, "signal", "approve", turn - 1, "reviewer-3"),
    ]  # fmt: skip
    dice.shuffle(calls)
    answers = await asyncio.gather(
        *(
            send(desk, run, path, word, turn=at, reviewer=who, decision_id=decision)
            for decision, path, word, at, who in calls
        )
    )
    assert set(answers) <= {"sent", "decided", "already_decided", "stale_review", "run_ended", "gone"}, answers
    return len({call[0] for call, answer in zip(calls, answers, strict=True) if answer in ("sent", "decided")})


async def play(desk: Underwriting, seed: int) -> tuple[UUID, int]:
    dice = random.Random(seed)
    run = await desk.start(turn_limit=TURNS, pace=Pace())
    recorded = sum([await race(desk, run, turn, dice) for turn in range(1, TURNS + 1)])
    await desk.reaches(run, "completed", seconds=150)
    return run, recorded


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")
async def test_t_02_races_have_one_winner_each_and_everything_is_on_record(desk: Underwriting) -> None:
    async with desk.worker():
        runs = await asyncio.gather(*(play(desk, seed) for seed in range(RACES // TURNS)))
        results = await asyncio.gather(*(desk.handle(run).result() for run, _ in runs))
    for (run, recorded), result in zip(runs, results, strict=True):
        rows = await desk.rows("agent_review_decisions", run)
        deciding = [row for row in rows if row["effect"] == "decided"]
        assert len({row["review_id"] for row in deciding}) == len(deciding) == TURNS
        last = next(row for row in deciding if row["turn"] == TURNS)
        assert {"approve": "approved", "deny": "denied"}[last["decision"]] == result
        # A refused update leaves nothing in Temporal: its row is the API's part. All that was taken is here.
        assert len(rows) == recorded
        refused = {row["refusal"] for row in rows if row["status"] == "refused"}
        assert refused <= {"already_decided", "stale_review", "run_ended"}
