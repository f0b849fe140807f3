"""What it means that a guarded write changed no row: read the row, and say which of the answers it was."""

from __future__ import annotations

from dataclasses import dataclass

from shared.contract.errors import WriteOutcome


@dataclass(frozen=True, slots=True)
class Stored:
    """What a guarded write found in its way: the row's state, its fence, and whether it can still move."""

    state: str
    fence: int
    is_terminal: bool


def classify(stored: Stored | None, state: str, fence: int) -> WriteOutcome:
    """Why the write of `state` under `fence` changed nothing.

    The same terminal state again and an older writer are no-ops; another end than the recorded one is a conflict.
    """
    if stored is None:
        return WriteOutcome.MISSING
    if stored.state == state or fence < stored.fence:
        return WriteOutcome.NO_OP
    return WriteOutcome.CONFLICT
