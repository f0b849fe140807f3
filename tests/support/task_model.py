"""The protocol as a small model in plain Python: what each verb must do to a task, and to whom it must say no.

Written from the rules (system's ADRs, glossary), not from the SQL: tests hold the two against each other
after every step. It knows one transaction at a time; orders of concurrent ones are the explorer's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any
from uuid import UUID

OPEN = frozenset({"leased", "submitted", "running", "released"})
HELD = frozenset({"leased", "submitted", "running"})
OVER = frozenset({"completed", "failed", "cancelled"})
MINUTE = timedelta(seconds=60)


@dataclass
class Attempt:
    """One try. `spoken`: its own report has been written down."""

    id: UUID
    number: int
    leased_at: datetime
    reserved: int
    status: str = "leased"
    run_id: int | None = None
    is_submitted: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    used: int = 0
    spoken: bool = False
    cancel_at: datetime | None = None
    is_confirmed: bool = False
    has_result: bool = False

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    def end(self, status: str, now: datetime) -> None:
        if self.status != status:
            self.status, self.finished_at = status, now

    def minutes(self) -> float:
        assert self.finished_at is not None
        return max(1.0, (self.finished_at - (self.started_at or self.leased_at)).total_seconds() / 60)

    def row(self) -> dict[str, Any]:
        """As the table shows it."""
        return {
            "status": self.status, "attempt": self.number, "run_id": self.run_id, "spoken": self.spoken,
            "cancel": self.cancel_at is not None, "confirmed": self.is_confirmed, "used_tokens": self.used,
        }  # fmt: skip


@dataclass
class Task:
    """One task. Its last attempt is the one that the fence knows."""

    id: UUID
    agent: str
    priority: int
    tokens: int
    created_at: datetime
    available_at: datetime
    max_attempts: int
    deferred: bool = False
    status: str = "enqueued"
    unspent: bool = False
    spared: int = 0
    reserved: int = 0
    lease: datetime | None = None
    holder: str | None = None
    source: UUID | None = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def current(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def number(self) -> int:
        return self.attempts[-1].number if self.attempts else 0

    @property
    def place(self) -> tuple[Any, ...]:
        return (-self.priority, self.created_at, self.id)

    def put(self, status: str) -> None:
        """Take the lease away and give the task this status."""
        self.status, self.lease, self.holder, self.reserved, self.unspent = status, None, None, 0, False

    def put_back(self, at: datetime, *, deferred: bool, unspent: bool = False) -> None:
        self.put("enqueued")
        self.available_at, self.deferred, self.unspent = at, deferred, unspent

    def row(self) -> dict[str, Any]:
        """As the table shows it."""
        return {
            "status": self.status, "attempt": self.number, "attempt_id": self.current.id if self.current else None,
            "unspent": self.unspent and self.status == "enqueued", "spared": self.spared, "priority": self.priority,
            "deferred": self.deferred, "available_at": self.available_at, "lease": self.lease, "holder": self.holder,
            "reserved": self.reserved,
        }  # fmt: skip


@dataclass
class Agent:
    """An agent's limits, and what it used within the last minute."""

    name: str
    most: int | None = None
    tpm: int | None = None
    lease_seconds: int = 300
    paused: bool = False
    spent: list[tuple[datetime, int]] = field(default_factory=list)


@dataclass
class Model:
    """All agents and tasks at one moment."""

    now: datetime
    agents: dict[str, Agent] = field(default_factory=dict)
    tasks: dict[UUID, Task] = field(default_factory=dict)
    keys: dict[str, tuple[UUID, int]] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)

    def later(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def all(self) -> Iterator[tuple[Task, Attempt]]:
        return ((task, attempt) for task in self.tasks.values() for attempt in task.attempts)

    def find(self, attempt_id: UUID) -> tuple[Task, Attempt] | None:
        return next((pair for pair in self.all() if pair[1].id == attempt_id), None)

    def holds(self, attempt_id: UUID) -> bool:
        """Whether the attempt has its task's lease."""
        pair = self.find(attempt_id)
        return pair is not None and pair[0].status == "processing" and pair[0].current is pair[1]

    def is_overdue(self, task: Task) -> bool:
        return task.lease is not None and task.lease <= self.now

    def running(self, agent: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.agent == agent and task.status == "processing"]

    def used(self, agent: Agent) -> int:
        return sum(tpm for at, tpm in agent.spent if at > self.now - MINUTE)

    # The dispatcher's.

    def admits(self, agent: Agent, limit: int) -> list[Task]:
        """The tasks that this agent may start now, in order; none smaller overtakes one that does not fit."""
        running = self.running(agent.name)
        slots = limit if agent.most is None else min(limit, max(agent.most - len(running), 0))
        line = sorted(
            (t for t in self.tasks.values() if t.agent == agent.name and t.status == "enqueued" and not t.deferred
             and t.available_at <= self.now),
            key=lambda task: task.place,
        )[:slots]  # fmt: skip
        if agent.paused or agent.tpm is None:
            return [] if agent.paused else line
        used = self.used(agent)
        left = max(agent.tpm - sum(t.reserved for t in running) - used, 0)
        if line and not running and not used and agent.tpm and line[0].tokens > agent.tpm:
            return line[:1]
        fitting: list[Task] = []
        for task in line:
            left -= task.tokens
            if left < 0:
                break
            fitting.append(task)
        return fitting

    def claimable(self, limit: int) -> list[Task]:
        """The tasks that a claim must lease now, in order."""
        found = [task for agent in self.agents.values() for task in self.admits(agent, limit)]
        return sorted(found, key=lambda task: task.place)[:limit]

    def claim(self, task: Task, attempt_id: UUID, holder: str, seconds: float) -> None:
        if task.unspent:
            attempt = task.attempts[-1]
            assert attempt.id == attempt_id, "a released attempt keeps its token"
            attempt.status, attempt.leased_at, attempt.reserved = "leased", self.now, task.tokens
        else:
            assert self.find(attempt_id) is None, "a token names one attempt"
            task.attempts.append(Attempt(attempt_id, task.number + 1, self.now, task.tokens))
        task.put("processing")
        task.reserved, task.lease, task.holder = task.tokens, self.later(seconds), holder

    def record_run(self, task: Task, attempt: Attempt, run_id: int) -> bool:
        """Whether the run is unwanted: its task ended, or went on without it, before the run was known."""
        is_news = attempt.run_id is None
        attempt.run_id, attempt.is_submitted = run_id, True
        if attempt.status == "leased":
            attempt.status = "submitted"
            if self.holds(attempt.id):
                task.lease = self.later(self.agents[task.agent].lease_seconds)
        if attempt.status in OVER | {"superseded"} and not attempt.spoken:
            attempt.cancel_at = attempt.cancel_at or self.now
        if is_news:
            attempt.is_confirmed = False
        return attempt.cancel_at is not None

    def may_release(self, task: Task, attempt: Attempt, holder: str) -> bool:
        """Only who has the lease puts back or refuses; another may be submitting it by now."""
        return self.holds(attempt.id) and attempt.status == "leased" and task.holder == holder

    def release(self, task: Task, attempt: Attempt, seconds: float) -> None:
        attempt.status, attempt.reserved = "released", 0
        task.put_back(self.later(seconds), deferred=seconds > 0, unspent=True)

    def refuse(self, task: Task, attempt: Attempt) -> None:
        attempt.end("failed", self.now)
        task.put("failed")

    def expire(self, task: Task, attempt: Attempt, holder: str, seconds: float) -> None:
        if self.may_release(task, attempt, holder):
            task.lease, task.holder = self.later(seconds), None

    def orphans(self) -> set[UUID]:
        """Attempts whose run nobody knows and whose dispatcher is silent or let the lease end."""
        return {
            attempt.id for task, attempt in self.all()
            if self.holds(attempt.id) and attempt.status == "leased"
            and (self.is_overdue(task) or task.holder in self.stopped)
        }  # fmt: skip

    # The receiver's.

    def heartbeat(self, task: Task, attempt: Attempt) -> tuple[str, str, bool]:
        """(verdict, outcome, whether the agent should stop)."""
        is_live = self.holds(attempt.id) and attempt.status in HELD
        if is_live:
            assert task.lease is not None
            # As long as its run is unknown a dispatcher must still ask for it: it stays leased.
            attempt.status = attempt.status if attempt.run_id is None else "running"
            attempt.started_at = attempt.started_at or self.now
            task.lease = max(task.lease, self.later(self.agents[task.agent].lease_seconds))
        is_unwanted = (
            attempt.cancel_at is not None or task.current is not attempt or task.is_over or not attempt.is_open
        )
        return "extend" if is_live else "ignore", "running" if attempt.is_open else attempt.status, is_unwanted

    def settle(
        self, task: Task, attempt: Attempt, *, succeeded: bool, retryable: bool, stored: bool, tokens: int | None
    ) -> tuple[str, str]:
        """(verdict, outcome). The first word of an attempt counts; the first success of a task wins."""
        if attempt.spoken:
            return "settled", attempt.status
        if task.is_over or attempt.status in OVER | {"superseded"}:
            verdict = "note"
        elif succeeded:
            verdict = "complete" if attempt.has_result or not stored else "result_missing"
        elif task.current is not attempt or (attempt.status == "lost" and retryable):
            verdict = "record"
        else:
            verdict = "retry" if retryable and attempt.number - task.spared < task.max_attempts else "fail"
        if verdict != "result_missing":
            self._speak(task, attempt, verdict, tokens)
        return verdict, attempt.status

    def _speak(self, task: Task, attempt: Attempt, verdict: str, tokens: int | None) -> None:
        attempt.spoken = True
        ending = {"complete": "completed", "retry": "failed", "fail": "failed"}
        if verdict in ending:
            attempt.end(ending[verdict], self.now)
        if tokens is not None:
            attempt.used = tokens
        elif verdict == "complete":
            attempt.used = ceil(attempt.reserved * attempt.minutes())
        weighing = [attempt]
        if verdict == "complete":
            weighing += [each for each in task.attempts if each.is_open]
            for other in weighing[1:]:
                other.used = other.reserved if other.is_submitted else 0
                other.end("superseded", self.now)
                other.cancel_at = other.cancel_at or self.now
            task.put("completed")
        elif verdict == "fail":
            task.put("failed")
        elif verdict == "retry":
            task.put_back(self.now, deferred=True)
        if verdict in ending and verdict != "retry":
            task.deferred = False
        agent = self.agents[task.agent]
        if agent.tpm is not None:
            agent.spent.append((self.now, sum(ceil(each.used / each.minutes()) for each in weighing if each.used)))

    # The sweeper's.

    def overdue(self) -> dict[UUID, bool]:
        return {
            attempt.id: attempt.has_result for task, attempt in self.all()
            if self.holds(attempt.id) and self.is_overdue(task) and attempt.run_id is not None
        }  # fmt: skip

    def may_sweep(self, attempt_id: UUID) -> bool:
        pair = self.find(attempt_id)
        return pair is not None and self.holds(attempt_id) and self.is_overdue(pair[0])

    def lose(self, task: Task, attempt: Attempt, finding: str) -> None:
        attempt.end("lost", self.now)
        if finding == "too_long":
            attempt.cancel_at = self.now
        if finding == "never_started":
            task.spared += 1
        if finding == "hopeless" or attempt.number - task.spared >= task.max_attempts:
            task.put("failed")
            task.deferred = False
        else:
            task.put_back(self.now, deferred=True)

    # The console's.

    def cancel(self, task: Task) -> None:
        task.put("cancelled")
        task.deferred = False
        attempt = task.current
        if attempt is not None and attempt.is_open:
            if attempt.status != "released" or attempt.run_id is not None:
                attempt.cancel_at = attempt.cancel_at or self.now
            attempt.end("cancelled", self.now)

    def unwanted(self) -> set[UUID]:
        """Runs to end: known ones, and those that nobody has heard of for two minutes."""
        return {
            attempt.id for _, attempt in self.all() if attempt.cancel_at is not None and not attempt.is_confirmed
            and (attempt.run_id is not None or attempt.cancel_at <= self.now - 2 * MINUTE)
        }  # fmt: skip
