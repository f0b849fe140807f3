"""What happens in a chaos run and when, drawn from the seed alone.

The acts of a seed are the same in every run; how the processes meet them is not, for they are real.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

AGENTS = ("counted", "weighed", "both", "free")
REPLICAS = ("dispatcher-1", "dispatcher-2", "dispatcher-3", "sweeper-1", "sweeper-2", "receiver-1", "receiver-2")
ACTS_PER_SECOND = 3.0
SHIFTS = (0, 0, 0, 41, -37, 7_200, -7_200, 86_400)
"""Seconds by which an app host's clock may be wrong; drawn anew for every life of a process."""

Given = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens, so many seconds after the beginning."""

    at: float
    kind: str
    given: Given

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.kind} {self.given}"


def schedule(seed: int, seconds: float) -> list[Act]:
    """All acts of a run; a longer run of the same seed begins like a shorter one."""
    chance = random.Random(seed)
    kinds = [kind for kind, (weight, _) in _KINDS.items() for _ in range(weight)]
    acts = [Act(0.0, "enqueue", _enqueue(chance) | {"agent": agent}) for agent in AGENTS]
    # The rarest one is in the shortest run as well.
    acts.append(Act(chance.uniform(5, 15), "restart_postgres", _restart_postgres(chance)))
    at = 0.5
    while at < seconds:
        kind = chance.choice(kinds)
        acts.append(Act(at, kind, _KINDS[kind][1](chance)))
        at += chance.expovariate(ACTS_PER_SECOND)
    return sorted((act for act in acts if act.at < seconds), key=lambda act: act.at)


def _enqueue(chance: random.Random) -> Given:
    return {
        "agent": chance.choice(AGENTS),
        "plays": [_plays(chance) for _ in range(chance.randint(1, 5))],
        "priority": chance.choice([50, 50, 50, 10, 90]),
        "max_attempts": chance.choice([1, 2, 3, 3, 5]),
        "delay": chance.choice([0, 0, 0, 0, 2.5]),
        "tokens": chance.choice([None, 2_000, 6_000, 200_000]),
        "twice": chance.random() < 0.2,
        # Some come as the children of a parent, which ends by this rule.
        "gather": chance.choice([None, None, "all_completed", "any_completed", "all_ended"]),
    }


def _plays(chance: random.Random) -> list[tuple[str, float]]:
    """What the agent does at its first, second … attempt of a task; after that it works well."""
    kinds = ("work",) * 20 + ("fail",) * 4 + ("refuse", "refuse", "vanish", "linger")
    return [(chance.choice(kinds), round(chance.uniform(0, 0.5), 2)) for _ in range(3)]


def _kill(chance: random.Random) -> Given:
    return {
        "replica": chance.choice(REPLICAS),
        "back_after": round(chance.uniform(0.1, 3), 2),
        "renamed": chance.random() < 0.5,
        "shift": chance.choice(SHIFTS),
        "signal": chance.choice(["SIGKILL", "SIGKILL", "SIGKILL", "SIGTERM"]),
    }


def _freeze(chance: random.Random) -> Given:
    # The long ones outlast leases, duties and the patience with silent dispatchers.
    seconds = chance.choice([0.3, 1, 2, 4, 8, 24])
    return {"replica": chance.choice(REPLICAS), "seconds": seconds}


def _restart_postgres(chance: random.Random) -> Given:
    return {"signal": chance.choice(["SIGQUIT", "SIGINT"]), "back_after": round(chance.uniform(0, 2), 2)}


def _cut(chance: random.Random) -> Given:
    return {"service": chance.choice(["dispatcher", "sweeper", "callback_receiver", "console", "document_agent"])}


def _of_call(chance: random.Random) -> Given:
    """Something goes wrong between a service and the runner."""
    kind, rule = chance.choice(
        [
            ("status", {"status": 429, "retry_after": "1"}),
            ("status", {"status": 503}),
            ("status", {"status": 400, "message": "the job is not valid"}),
            ("status_after_effect", {"status": 503}),
            ("drop_after_effect", {}),
            ("drop_after_effect", {}),
            ("drop", {}),
            ("delay", {"seconds": 4}),
        ]
    )
    api = chance.choice(["jobs.run_now"] * 3 + ["jobs.runs_get", "jobs.runs_cancel"])
    times = 1 if rule.get("status") == 400 else chance.randint(1, 5)
    return {"api": api, "kind": kind, "times": times, **rule}


def _of_run(chance: random.Random) -> Given:
    """Something goes wrong with a run itself."""
    kind, rule = chance.choice(
        [
            ("die_silently", {}),
            ("kill", {"seconds": 0.1}),
            ("hold", {"state": "QUEUED", "seconds": 7}),
            ("hold", {"state": "RUNNING", "seconds": 7, "when": "after"}),
            ("end", {"state": "INTERNAL_ERROR", "result": "FAILED", "code": "CLOUD_FAILURE"}),
            ("end", {"state": "SKIPPED", "code": "MAX_CONCURRENT_RUNS_EXCEEDED"}),
        ]
    )
    return {"api": "run", "kind": kind, "times": chance.randint(1, 2), **rule}


def _limits(chance: random.Random) -> Given:
    agent = chance.choice(AGENTS)
    most = {"max_concurrent_tasks": chance.choice([0, 1, 2, 4, 8, None])}
    budget = {"max_tpm": chance.choice([0, 3_000, 9_000, 60_000, None])}
    return {"agent": agent, **(most if agent != "weighed" else {}), **(budget if agent in {"weighed", "both"} else {})}


def _pause(chance: random.Random) -> Given:
    return {"agent": chance.choice(AGENTS), "seconds": round(chance.uniform(0.5, 4), 2)}


def _operate(action: str) -> Callable[[random.Random], Given]:
    def draw(chance: random.Random) -> Given:
        # Mostly of the youngest tasks, which are not over yet.
        return {"action": action, "pick": round(1 - chance.random() ** 3, 4), "priority": chance.randint(0, 100)}

    return draw


def _bulk(chance: random.Random) -> Given:
    return {"action": chance.choice(["cancel", "retry", "reprioritise"]), "agent": chance.choice(AGENTS),
            "priority": chance.randint(0, 100)}  # fmt: skip


_KINDS: dict[str, tuple[int, Callable[[random.Random], Given]]] = {
    "enqueue": (22, _enqueue),
    "kill": (12, _kill),
    "freeze": (8, _freeze),
    "restart_postgres": (1, _restart_postgres),
    "cut": (3, _cut),
    "break_call": (12, _of_call),
    "break_run": (6, _of_run),
    "limits": (8, _limits),
    "pause": (3, _pause),
    "cancel": (6, _operate("cancel")),
    "retry": (5, _operate("retry")),
    "reprocess": (3, _operate("reprocess")),
    "reprioritise": (4, _operate("reprioritise")),
    "bulk": (2, _bulk),
}
