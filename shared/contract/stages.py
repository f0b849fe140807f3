"""The stages of a task's way through the processes, as its trace shows them.

The ids of trace and spans follow from the task and the attempt, so that every process knows them without being told.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the way. The first belongs to the task, every other to an attempt."""

    name: str
    parent: Stage | None = None
    kind: Literal["INTERNAL", "PRODUCER", "CLIENT", "SERVER"] = "INTERNAL"


ENQUEUE = Stage("enqueue", kind="PRODUCER")
CLAIM = Stage("claim", ENQUEUE)
SUBMIT = Stage("submit", CLAIM, "CLIENT")
AGENT = Stage("agent", SUBMIT, "SERVER")
CALLBACK = Stage("callback", AGENT, "SERVER")
COST = Stage("cost", CALLBACK)


def span_id(stage: Stage, task: UUID, attempt: UUID | None) -> int:
    """Eight bytes that are the same for everybody who knows the task and the attempt."""
    owner = task if stage.parent is None or attempt is None else attempt
    return int.from_bytes(hashlib.blake2b(owner.bytes + stage.name.encode(), digest_size=8).digest(), "big") or 1
