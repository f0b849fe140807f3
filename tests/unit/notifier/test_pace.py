from __future__ import annotations

from services.notifier.policy.pace import rests_until


def test_a_short_round_keeps_the_tick_and_a_long_one_stretches_it() -> None:
    assert rests_until(10.0, 10.0625, 0.25) == 10.25
    assert rests_until(10.0, 10.25, 0.25) == 10.5
