"""The life of a task and of an attempt, as data.

`TRANSITIONS` is the source: the picture in docs/state-machine.md is generated from it, the trigger
that refuses illegal moves is tested equal to it, and each statement that names a transition in its
header must be owned by the service named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TaskStatus(StrEnum):
    """Where a task is in its life."""

    ENQUEUED = "enqueued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptStatus(StrEnum):
    """Where an attempt is; `released` was given back before a run was known and will be leased again."""

    LEASED = "leased"
    SUBMITTED = "submitted"
    RUNNING = "running"
    RELEASED = "released"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    LOST = "lost"


TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})
ATTEMPT_TERMINAL = frozenset(
    {
        AttemptStatus.COMPLETED,
        AttemptStatus.FAILED,
        AttemptStatus.CANCELLED,
        AttemptStatus.SUPERSEDED,
        AttemptStatus.LOST,
    }
)


@dataclass(frozen=True, slots=True)
class Transition:
    """One legal move of a task: the verb, where from, where to, and the service that owns it."""

    verb: str
    source: TaskStatus | None
    target: TaskStatus
    owner: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("enqueue", None, TaskStatus.ENQUEUED, "console"),
    Transition("claim", TaskStatus.ENQUEUED, TaskStatus.PROCESSING, "dispatcher"),
    Transition("release", TaskStatus.PROCESSING, TaskStatus.ENQUEUED, "dispatcher"),
    Transition("refuse", TaskStatus.PROCESSING, TaskStatus.FAILED, "dispatcher"),
    Transition("requeue", TaskStatus.PROCESSING, TaskStatus.ENQUEUED, "sweeper"),
    Transition("give_up", TaskStatus.PROCESSING, TaskStatus.FAILED, "sweeper"),
    Transition("retry", TaskStatus.PROCESSING, TaskStatus.ENQUEUED, "callback_receiver"),
    # A call that nobody answered may have started a run: it fails while its task waits to be asked for again.
    Transition("retry", TaskStatus.ENQUEUED, TaskStatus.ENQUEUED, "callback_receiver"),
    Transition("complete", TaskStatus.PROCESSING, TaskStatus.COMPLETED, "callback_receiver"),
    Transition("complete", TaskStatus.ENQUEUED, TaskStatus.COMPLETED, "callback_receiver"),
    Transition("fail", TaskStatus.PROCESSING, TaskStatus.FAILED, "callback_receiver"),
    Transition("fail", TaskStatus.ENQUEUED, TaskStatus.FAILED, "callback_receiver"),
    # A parent, once its children have ended.
    Transition("gather", TaskStatus.ENQUEUED, TaskStatus.COMPLETED, "callback_receiver"),
    Transition("gather", TaskStatus.ENQUEUED, TaskStatus.FAILED, "callback_receiver"),
    Transition("cancel", TaskStatus.ENQUEUED, TaskStatus.CANCELLED, "console"),
    Transition("cancel", TaskStatus.PROCESSING, TaskStatus.CANCELLED, "console"),
)

LEGAL_MOVES = frozenset((move.source, move.target) for move in TRANSITIONS if move.source is not None)


def is_terminal(status: TaskStatus) -> bool:
    """Whether a task with this status never changes it again."""
    return status in TERMINAL


def mermaid() -> str:
    """The state diagram of a task, as mermaid text."""
    lines = ["stateDiagram-v2"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in TRANSITIONS:
        source = "[*]" if move.source is None else move.source.value
        arrows.setdefault((source, move.target.value), []).append(f"{move.verb} ({move.owner})")
    lines += [f"    {source} --> {target}: {', '.join(verbs)}" for (source, target), verbs in arrows.items()]
    lines += [f"    {status.value} --> [*]" for status in TaskStatus if status in TERMINAL]
    return "\n".join(lines) + "\n"
