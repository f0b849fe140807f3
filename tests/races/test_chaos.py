"""Everything at once on real processes, judged every second and at the end.

`./dev test races -k chaos` is the short form. LOCKKEEPER_TEST_CHAOS says how many seconds things go wrong,
LOCKKEEPER_TEST_SEEDS which seeds: `7`, `1-20` or `3,5,8`. The acts of a seed are the same every time; see
tests/support/chaos/acts.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.support.chaos.acts import schedule
from tests.support.chaos.conductor import Conductor
from tests.support.chaos.judge import NotRightError
from tests.support.chaos.machine import Machine

SECONDS = float(os.environ.get("LOCKKEEPER_TEST_CHAOS", "20"))


def _seeds() -> list[int]:
    found: list[int] = []
    for part in os.environ.get("LOCKKEEPER_TEST_SEEDS", "1").split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.timeout(SECONDS * 2 + 600)
@pytest.mark.parametrize("seed", _seeds())
def test_chaos_breaks_nothing(tmp_path: Path, seed: int) -> None:
    started = time.monotonic()
    machine = Machine(tmp_path)
    try:
        said = asyncio.run(_perform(machine, seed))
    except NotRightError as error:
        # Told at once: twenty seeds take an hour.
        print(error, flush=True)
        raise
    finally:
        machine.stop()
    print(f"chaos: seed {seed} in {time.monotonic() - started:.0f} s: {said}", flush=True)


async def _perform(machine: Machine, seed: int) -> str:
    async with Conductor(machine, seed, SECONDS) as conductor:
        print(f"\nchaos: seed {seed}, {SECONDS} s, {len(conductor.acts)} acts", flush=True)
        return await conductor.perform()


def test_chaos_of_a_seed_is_always_the_same_and_longer_runs_only_go_on() -> None:
    assert schedule(5, 60) == schedule(5, 60)
    assert [act for act in schedule(5, 600) if act.at < 60] == schedule(5, 60)
    assert schedule(6, 60) != schedule(5, 60)
