from __future__ import annotations

import asyncio

import pytest

from shared.contract.errors import TransientError
from shared.runtime.loops import BudgetSpentError, LoopRunner


class Scripted:
    """A loop whose rounds do what the script says: an error to raise, or whether there is more."""

    name = "scripted"
    poll_seconds = 3600.0

    def __init__(self, *script: bool | Exception) -> None:
        self.script = list(script)
        self.rounds = 0
        self.reached = asyncio.Event()

    async def run_once(self) -> bool:
        self.rounds += 1
        step = self.script.pop(0) if self.script else False
        if not self.script:
            self.reached.set()
        if isinstance(step, Exception):
            raise step
        return step


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.runtime.loops.MAX_BACKOFF_SECONDS", 0.001)


async def test_a_loop_gives_up_after_its_budget_of_failures_in_a_row() -> None:
    loop = Scripted(ValueError("a"), ValueError("b"), ValueError("c"))
    with pytest.raises(BudgetSpentError, match="scripted failed 3 rounds in a row: c"):
        await LoopRunner(loop, failure_budget=3).run()
    assert loop.rounds == 3


async def test_one_good_round_gives_the_whole_budget_back() -> None:
    loop = Scripted(ValueError("a"), ValueError("b"), True, ValueError("c"), ValueError("d"), False)
    runner = LoopRunner(loop, failure_budget=3)
    running = asyncio.create_task(runner.run())
    await loop.reached.wait()
    runner.stop()
    await running
    assert loop.rounds == 6


async def test_k01_a_database_that_is_away_spends_nothing() -> None:
    loop = Scripted(*[TransientError("away")] * 50, False)
    runner = LoopRunner(loop, failure_budget=3)
    running = asyncio.create_task(runner.run())
    await loop.reached.wait()
    runner.stop()
    await running
    assert loop.rounds == 51


async def test_a_note_that_lands_during_a_round_costs_one_more_round() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Scripted):
        async def run_once(self) -> bool:
            self.rounds += 1
            entered.set()
            await go_on.wait()
            return False

    loop = Slow()
    runner = LoopRunner(loop, failure_budget=3)
    running = asyncio.create_task(runner.run())
    await entered.wait()
    runner.wake()
    entered.clear()
    go_on.set()
    await asyncio.wait_for(entered.wait(), 5)
    runner.stop()
    await running
    assert loop.rounds == 2
