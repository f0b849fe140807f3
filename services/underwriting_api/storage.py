"""The API's statements as methods of the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.contract.underwriting import Decision, LoanRequest, event_id, workflow_id
from shared.db.pool import Database
from shared.db.statements import load
from shared.runtime.metrics import FENCED_WRITES

_SQL = load("services.underwriting_api")

Json = dict[str, Any]
Rows = list[Json]


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a list means; None means any."""

    user: str | None = None
    states: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    purpose: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a decision: (status, effect, refusal, message, turn)."""

    status: str
    effect: str | None = None
    refusal: str | None = None
    message: str | None = None
    turn: int | None = None


class ApiStorage:
    """What comes in, and what people see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert_run(self, run: UUID, request: LoanRequest, options: Json, key: str | None, digest: str) -> bool:
        """Take a request in; False when its key is taken."""
        made = await self._database.fetchval(
            _SQL["insert_run"].sql, run, workflow_id(run), request.user, request.applicant, request.amount,
            request.purpose, request.model, request.turn_limit, request.model_dump(mode="json"), options, key, digest,
        )  # fmt: skip
        return made is not None

    async def find_run_by_key(self, key: str) -> Json | None:
        """The run that a key has made."""
        return await self._one("find_run_by_key", key)

    async def record_start(self, run: UUID, temporal_run: str) -> None:
        """Temporal has the run."""
        await self._database.execute(_SQL["record_start"].sql, run, temporal_run)

    async def postpone_start(self, run: UUID) -> None:
        """Temporal did not answer."""
        await self._database.execute(_SQL["postpone_start"].sql, run)

    async def refuse_start(self, run: UUID, error: Json) -> None:
        """Temporal will never take the run."""
        await self._database.execute(_SQL["refuse_start"].sql, run, error)

    async def take_unstarted(self, limit: int) -> Rows:
        """Runs that Temporal does not have yet."""
        return await self._many("take_unstarted", limit)

    async def insert_decision(self, run: UUID, decision: Decision) -> bool:
        """Keep a decision before anybody is asked about it; False when its id is taken."""
        made = await self._database.fetchval(
            _SQL["insert_decision"].sql, decision.decision_id, run, decision.review_id, decision.decision,
            decision.note, decision.reviewer,
        )  # fmt: skip
        return made is not None

    async def read_decision(self, decision: UUID) -> Json | None:
        """One decision as it stands."""
        return await self._one("read_decision", decision)

    async def settle_decision(self, run: UUID, decision: UUID, verdict: Verdict) -> None:
        """What Temporal said; a decision that is settled stays as it is."""
        done = await self._database.fetchval(
            _SQL["settle_decision"].sql, decision, verdict.status, verdict.effect, verdict.refusal, verdict.message,
            verdict.turn, event_id(run, "agent.decision_refused", decision),
        )  # fmt: skip
        FENCED_WRITES.labels("settle_decision", "no_op" if done is None else "applied").inc()

    async def postpone_decision(self, decision: UUID) -> None:
        """Nobody knows yet what became of it."""
        await self._database.execute(_SQL["postpone_decision"].sql, decision)

    async def take_undelivered(self, limit: int) -> Rows:
        """Decisions whose fate is not known."""
        return await self._many("take_undelivered", limit)

    async def request_cancel(self, run: UUID, actor: str) -> bool:
        """Keep the wish; False when the run has ended."""
        return await self._database.fetchval(_SQL["request_cancel"].sql, run, actor) is not None

    async def record_cancel(self, run: UUID) -> None:
        """Temporal knows of the wish."""
        await self._database.execute(_SQL["record_cancel"].sql, run)

    async def take_uncancelled(self, limit: int) -> list[UUID]:
        """Runs whose end Temporal was not told of."""
        return [row["run_id"] for row in await self._many("take_uncancelled", limit)]

    async def list_runs(self, chosen: RunFilter, before: tuple[datetime | None, UUID | None], limit: int) -> Rows:
        """A page of runs, newest first."""
        text = None if chosen.text is None else f"%{chosen.text}%"
        return await self._many(
            "list_runs", chosen.user, list(chosen.states) or None, list(chosen.conditions) or None, chosen.purpose,
            text, *before, limit,
        )  # fmt: skip

    async def read_run(self, run: UUID) -> Json | None:
        """One run on one line."""
        return await self._one("read_run", run)

    async def read_detail(self, run: UUID) -> Mapping[str, Rows]:
        """Everything that belongs to a run, in one snapshot."""
        names = ("list_messages", "list_tool_calls", "list_decisions", "list_events", "list_steps")
        async with self._database.transaction() as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            found = {name: await connection.fetch(_SQL[name].sql, run) for name in names}
        return {name.removeprefix("list_"): [dict(row) for row in rows] for name, rows in found.items()}

    async def list_limits(self) -> Rows:
        """The policy as it is now."""
        return await self._many("list_limits")

    async def workflow_metrics(self, since: datetime) -> Json:
        """Runs by state, and how long they took."""
        found = await self._one("workflow_metrics", since)
        return found or {}

    async def retry_metrics(self, since: datetime) -> Rows:
        """Attempts by activity and number."""
        return await self._many("retry_metrics", since)

    async def _one(self, name: str, *args: Any) -> Json | None:
        row = await self._database.fetchrow(_SQL[name].sql, *args)
        return None if row is None else dict(row)

    async def _many(self, name: str, *args: Any) -> Rows:
        return [dict(row) for row in await self._database.fetch(_SQL[name].sql, *args)]
