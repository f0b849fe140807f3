"""What operators may do to a task in which state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from shared.contract.lifecycle import TERMINAL, TaskStatus

Action = Literal["cancel", "retry", "reprocess", "reprioritise"]
Task = Mapping[str, Any]

_ENDED_BADLY = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
_LIVE = frozenset({TaskStatus.ENQUEUED, TaskStatus.PROCESSING})

ELIGIBLE: dict[Action, frozenset[TaskStatus]] = {
    "cancel": _LIVE,
    "retry": _ENDED_BADLY | {TaskStatus.ENQUEUED},
    "reprocess": TERMINAL,
    "reprioritise": _LIVE,
}
"""The statuses in which an action may be possible; `forbids` has the last word."""


def _has_ended(status: str | None) -> bool:
    return status is not None and TaskStatus(status) in TERMINAL


def forbids(action: Action, task: Task, now: datetime) -> str | None:
    """Why the state of the task forbids the action, as a sentence; None when it is allowed."""
    status = TaskStatus(task["status"])
    match action:
        case "cancel" | "reprioritise" if status in TERMINAL:
            return f"The task has already ended as {status}; terminal tasks stay as they are."
        case "retry" if status is TaskStatus.ENQUEUED and task["gather"] is not None:
            return "The task waits for its children; retry those that failed."
        case "retry" | "reprocess" if status in TERMINAL and task["gather"] is not None:
            return f"The task had children and has ended as {status}; enqueue a new parent with those that are wanted."
        case "retry" | "reprocess" if status in TERMINAL and _has_ended(task["parent_status"]):
            return (
                f"The parent of the task has ended as {task['parent_status']}; enqueue the child's work as a new task."
            )
        case "retry" if status is TaskStatus.ENQUEUED and task["available_at"] <= now:
            return "The task already waits to be started."
        case "retry" if status is TaskStatus.PROCESSING:
            return "The task is being processed; cancel it first."
        case "retry" if status is TaskStatus.COMPLETED:
            return "The task completed; reprocess it to do it anew."
        case "reprocess" if status not in TERMINAL:
            return f"The task has not ended yet, it is {status}; cancel it first."
        case _:
            return None
