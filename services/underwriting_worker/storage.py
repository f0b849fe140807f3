"""The worker's statements as methods of the same names; a write that changed nothing says why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from services.underwriting_worker import metrics
from services.underwriting_worker.policy.limits import Limits
from services.underwriting_worker.policy.retries import LAST_WORD, fence
from services.underwriting_worker.policy.writes import Stored, classify
from shared.contract.errors import MissingError, WriteOutcome
from shared.contract.underwriting import Decision, event_id, metric_id, workflow_id
from shared.db.pool import Connection, Database
from shared.db.statements import load
from shared.runtime.metrics import FENCED_WRITES

_SQL = load("services.underwriting_worker")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one step, as the metrics table and the guards know it."""

    run_id: UUID
    turn: int
    activity: str
    step_id: UUID
    round: int
    number: int
    started: float = field(default_factory=time.monotonic)

    @property
    def fence(self) -> int:
        """Larger for every later attempt, across rounds."""
        return fence(self.round, self.number)

    @property
    def metric_id(self) -> UUID:
        """The id of its row."""
        return metric_id(self.run_id, self.step_id, self.fence)


@dataclass(frozen=True, slots=True)
class Spent:
    """What an attempt moved: bytes and tokens."""

    payload_bytes: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the timeline; `key` tells apart events of one name."""

    name: str
    key: object
    details: Json


@dataclass(frozen=True, slots=True)
class _Guard:
    """A guarded write: its statement, the one that explains it, and what it wants to make of which row."""

    write: str
    explain: str
    key: UUID
    state: str
    fence: int = 0


class UnderwritingStorage:
    """The operational record of runs."""

    def __init__(self, database: Database, replica: str) -> None:
        self.database = database
        self._replica = replica

    async def read_run(self, run_id: UUID) -> Mapping[str, Any]:
        """The run's row. Raises MissingError."""
        row = await self.database.fetchrow(_SQL["read_run"].sql, run_id)
        if row is None:
            raise MissingError(f"run {run_id} has no record")
        return dict(row)

    async def read_evidence(self, run_id: UUID) -> list[Any]:
        """The newest result of each tool."""
        return await self.database.fetch(_SQL["read_evidence"].sql, run_id)

    async def list_tool_calls(self, run_id: UUID) -> list[Any]:
        """Every tool call, in the order of the transcript."""
        return await self.database.fetch(_SQL["list_tool_calls"].sql, run_id)

    async def list_messages(self, run_id: UUID) -> list[Any]:
        """Every message, in the order of the transcript."""
        return await self.database.fetch(_SQL["list_messages"].sql, run_id)

    async def read_message(self, message: UUID) -> Mapping[str, Any] | None:
        """One message as it stands."""
        return _mapping(await self.database.fetchrow(_SQL["read_message"].sql, message))

    async def read_decision(self, decision: UUID) -> Mapping[str, Any] | None:
        """One decision as it stands."""
        return _mapping(await self.database.fetchrow(_SQL["read_decision"].sql, decision))

    async def read_limits(self, purpose: str) -> Limits | None:
        """The policy's limits for a purpose; None when its row is missing."""
        row = await self.database.fetchrow(_SQL["read_limits"].sql, purpose)
        return None if row is None else Limits(**row)

    async def end_step(
        self, attempt: Attempt, outcome: str, error: Json | None = None, spent: Spent | None = None
    ) -> None:
        """One attempt has ended."""
        async with self.database.connection() as connection:
            await self._end(connection, attempt, outcome, error, spent or Spent())

    async def begin_tool_call(
        self, attempt: Attempt, *, position: int, tool: str, message: UUID | None, arguments: Json
    ) -> Mapping[str, Any] | None:
        """Open the call for this attempt; the call as it stands when it has ended or moved on already."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            begun = await connection.fetchval(
                _SQL["begin_tool_call"].sql, attempt.step_id, attempt.run_id, attempt.turn, position, tool, message,
                arguments, attempt.fence, attempt.number, self._replica,
            )  # fmt: skip
            if begun is not None:
                return None
            return _mapping(await connection.fetchrow(_SQL["read_tool_call"].sql, attempt.step_id))

    async def end_tool_call(self, attempt: Attempt, result: Json, spent: Spent) -> WriteOutcome:
        """Keep the result; together with the end of the step, so that both are there or none."""
        async with self.database.transaction() as connection:
            guard = _Guard("end_tool_call", "read_tool_call", attempt.step_id, "succeeded", attempt.fence)
            outcome = await _guarded(connection, guard, attempt.step_id, "succeeded", result, None, attempt.fence)
            await self._end(connection, attempt, "succeeded", None, spent)
            return outcome

    async def fail_tool_call(
        self, attempt: Attempt, *, call: UUID, position: int, tool: str, message: UUID | None, error: Json
    ) -> WriteOutcome:
        """End a call as failed, whether or not it ever began."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            outcome = await _guarded(
                connection, _Guard("fail_tool_call", "read_tool_call", call, "failed", LAST_WORD),
                call, attempt.run_id, attempt.turn, position, tool, message, error, LAST_WORD,
            )  # fmt: skip
            await self._end(connection, attempt, "succeeded", None, Spent())
            return outcome

    async def begin_answer(self, attempt: Attempt, position: int, model: str) -> Mapping[str, Any] | None:
        """Open the model's message for this attempt; the message as it stands when it is complete already."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            begun = await connection.fetchval(
                _SQL["begin_answer"].sql, attempt.step_id, attempt.run_id, attempt.turn, position, model, attempt.fence
            )
            if begun is not None:
                return None
            return _mapping(await connection.fetchrow(_SQL["read_message"].sql, attempt.step_id))

    async def end_answer(
        self, attempt: Attempt, *, content: str, calls: Sequence[Json], reading: Json, raw: Json, model: str,
        spent: Spent,
    ) -> WriteOutcome:  # fmt: skip
        """Keep the answer, its price and the end of the step in one transaction."""
        tokens = (spent.input_tokens, spent.output_tokens, spent.cache_read_tokens)
        async with self.database.transaction() as connection:
            outcome = await _guarded(
                connection, _Guard("end_answer", "read_message", attempt.step_id, "complete", attempt.fence),
                attempt.step_id, content, list(calls), reading, raw, model, *tokens, attempt.fence,
            )  # fmt: skip
            if outcome is WriteOutcome.APPLIED:
                await connection.execute(_SQL["price_answer"].sql, attempt.step_id, attempt.run_id, model, *tokens)
            await self._end(connection, attempt, "succeeded", None, spent)
            return outcome

    async def begin_turn(
        self, attempt: Attempt, seq: int, temporal_run: str, messages: Sequence[tuple[UUID, int, str, str]],
        events: Sequence[Event],
    ) -> WriteOutcome:  # fmt: skip
        """The turn's record: the run's state, what is said at its beginning, what the timeline shows."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            guard = _Guard("begin_turn", "explain_run", attempt.run_id, "running", seq)
            outcome = await _guarded(connection, guard, attempt.run_id, seq, attempt.turn, temporal_run)
            for message, *said in messages:
                guard = _Guard("write_message", "read_message", message, "complete")
                await _guarded(connection, guard, message, attempt.run_id, attempt.turn, *said)
            await self._close(connection, attempt, events)
            return outcome

    async def open_review(
        self, attempt: Attempt, seq: int, review: tuple[UUID, Any, Any], *, recommendation: Json, policy: Json | None,
        events: Sequence[Event], answer_error: Json | None,
    ) -> WriteOutcome:  # fmt: skip
        """The review's record."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            if answer_error is not None:
                await connection.execute(_SQL["fail_answer"].sql, attempt.run_id, answer_error)
            guard = _Guard("open_review", "explain_run", attempt.run_id, "awaiting_review", seq)
            outcome = await _guarded(connection, guard, attempt.run_id, seq, *review, recommendation, policy)
            await self._close(connection, attempt, events)
            return outcome

    async def remind_review(self, attempt: Attempt, seq: int, review: UUID, events: Sequence[Event]) -> WriteOutcome:
        """The reminder's record."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            guard = _Guard("remind_review", "explain_run", attempt.run_id, "awaiting_review", seq)
            outcome = await _guarded(connection, guard, attempt.run_id, seq, review)
            await self._close(connection, attempt, events)
            return outcome

    async def end_run(
        self, attempt: Attempt, seq: int, end: tuple[str, str, Json | None], events: Sequence[Event]
    ) -> WriteOutcome:
        """The run's last record."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            guard = _Guard("end_run", "explain_run", attempt.run_id, end[0], seq)
            outcome = await _guarded(connection, guard, attempt.run_id, seq, *end)
            await self._close(connection, attempt, events if outcome is not WriteOutcome.CONFLICT else ())
            return outcome

    async def record_decision(
        self, attempt: Attempt, decision: Decision, settled: tuple[str, str, str | None, str | None, str | None],
        events: Sequence[Event],
    ) -> WriteOutcome:  # fmt: skip
        """A decision's record: (path, status, effect, refusal, message)."""
        path, status, effect, refusal, message = settled
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            outcome = await _guarded(
                connection, _Guard("record_decision", "read_decision", decision.decision_id, status),
                decision.decision_id, attempt.run_id, decision.review_id, decision.decision, decision.note,
                decision.reviewer, path, status, effect, refusal, message, attempt.turn,
            )  # fmt: skip
            await self._close(connection, attempt, events if outcome is not WriteOutcome.CONFLICT else ())
            return outcome

    async def set_trace(self, message: UUID, trace: str) -> None:
        """The trace of an answer is stored."""
        await self.database.execute(_SQL["set_trace"].sql, message, trace)

    async def write_event(self, attempt: Attempt, events: Sequence[Event]) -> None:
        """Events alone."""
        async with self.database.transaction() as connection:
            await self._begin(connection, attempt)
            await self._close(connection, attempt, events)

    async def _begin(self, connection: Connection, attempt: Attempt) -> None:
        await connection.execute(
            _SQL["begin_step"].sql, attempt.metric_id, workflow_id(attempt.run_id), attempt.run_id, attempt.turn,
            attempt.activity, attempt.step_id, attempt.round, attempt.number, attempt.fence, self._replica,
        )  # fmt: skip

    async def _end(
        self, connection: Connection, attempt: Attempt, outcome: str, error: Json | None, spent: Spent
    ) -> None:
        await connection.execute(
            _SQL["end_step"].sql, attempt.metric_id, outcome, error, spent.payload_bytes, spent.input_tokens,
            spent.output_tokens,
        )  # fmt: skip
        metrics.STEPS.labels(attempt.activity, outcome).inc()
        metrics.STEP_SECONDS.labels(attempt.activity).observe(time.monotonic() - attempt.started)

    async def _close(self, connection: Connection, attempt: Attempt, events: Sequence[Event]) -> None:
        for event in events:
            await connection.execute(
                _SQL["write_event"].sql, event_id(attempt.run_id, event.name, event.key), attempt.run_id,
                attempt.turn, event.name, event.details,
            )  # fmt: skip
        await self._end(connection, attempt, "succeeded", None, Spent())


async def _guarded(connection: Connection, guard: _Guard, *args: Any) -> WriteOutcome:
    outcome = WriteOutcome.APPLIED
    if await connection.fetchval(_SQL[guard.write].sql, *args) is None:
        # The same transaction, a later statement: its snapshot sees what stood in the way.
        row = await connection.fetchrow(_SQL[guard.explain].sql, guard.key)
        stored = None if row is None else Stored(row["state"], row["fence"], row["is_terminal"])
        outcome = classify(stored, guard.state, guard.fence)
    FENCED_WRITES.labels(guard.write, outcome.value).inc()
    return outcome


def _mapping(row: asyncpg.Record | None) -> Mapping[str, Any] | None:
    return None if row is None else dict(row)
