"""How soon the next tick may follow."""

from __future__ import annotations


def rests_until(began: float, ended: float, gather_seconds: float) -> float:
    """When the next round may begin: what changes until then travels together.

    A round that took long is followed by as long a rest: reading and handing out never take more than half of the
    time, and what comes faster than it can be handed out merges.
    """
    return max(began + gather_seconds, ended + (ended - began))
