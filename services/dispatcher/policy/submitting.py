"""Decisions about handing on: how much to take, and how long to wait after which answer."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from shared.contract.rows import LeasedAttempt

MIN_COOL_DOWN_SECONDS = 1.0
MAX_COOL_DOWN_SECONDS = 120.0
RE_ASK_SECONDS = 3.0


def cool_down_seconds(retry_after: float | None, strikes: int, roll: float) -> float:
    """How long an agent rests after the runner said 429 or 503.

    What the runner asked for, else 1, 2, 4 … seconds by the refusals in a row; a quarter more at
    random, so that replicas do not come back together. `roll` is in [0, 1).
    """
    wanted = retry_after if retry_after is not None else MIN_COOL_DOWN_SECONDS * 2 ** min(max(strikes, 1) - 1, 10)
    return min(max(wanted, MIN_COOL_DOWN_SECONDS), MAX_COOL_DOWN_SECONDS) * (1 + roll / 4)


def re_ask_seconds(roll: float) -> float:
    """When to ask again, with the same token, about a submission that was not answered."""
    return RE_ASK_SECONDS * (0.5 + roll)


def room_for_claims(threads: int, ahead: int, held: int, batch: int) -> int:
    """How many tasks to lease now, so that none waits in this process for longer than a few calls."""
    return max(0, min(batch, threads * ahead - held))


def in_packs(leased: Iterable[LeasedAttempt]) -> list[list[LeasedAttempt]]:
    """The attempts in the groups that are to share a run, in order; most are alone.

    A pack holds attempts of one agent, at most as many as it allows. Attempts that have a pack already stay together.
    """
    packs: list[list[LeasedAttempt]] = []
    open_packs: dict[UUID | str, list[LeasedAttempt]] = {}
    for each in leased:
        key: UUID | str = each.pack_id or each.agent
        pack = open_packs.get(key)
        if pack is None or (each.pack_id is None and len(pack) >= each.tasks_per_run):
            pack = open_packs[key] = []
            packs.append(pack)
        pack.append(each)
    return packs
