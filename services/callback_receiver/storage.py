"""The database as the callback receiver sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from services.callback_receiver.messages import Kind, Report, Settled, Verdict, recovered_report
from services.callback_receiver.policy import classify, first_of_each, rate_tokens
from shared.contract.callback import Body, FailureBody, HeartbeatBody, ResultBody
from shared.contract.errors import WriteOutcome
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = {name: statement.sql for name, statement in load("services.callback_receiver").items()}


class CallbackStorage:
    """Settles reports in rounds; each round is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def settle(self, reports: Sequence[Report]) -> list[Settled | None]:
        """What became of each report, in order; None where its task's row is busy: ask again in a later round.

        Everything returned is committed. Raises TransientError; RejectedError when one of the reports holds
        a value that the database refuses, and then none of them is settled.
        """
        completed = await self._complete_attempts(reports)
        rest = [each for each in reports if id(each) not in completed]
        if not rest:
            return [completed[id(each)] for each in reports]
        others = iter(await self._database.atomically(lambda connection: self._settle_round(connection, rest)))
        return [completed.get(id(each)) or next(others) for each in reports]

    async def settle_recovered(self, limit: int) -> tuple[list[Settled], int]:
        """Settle results whose callback never came, and how many rows were taken; busy tasks are left for later."""

        async def work(connection: Connection) -> tuple[list[Settled], int]:
            rows = await connection.fetch(_SQL["take_recovered"], limit)
            reports = [
                recovered_report(row["attempt_id"], row["confidence"], row["pages"], row["report"])
                for row in rows
                if row["is_there"]
            ]
            found = await self._settle_round(connection, reports)
            busy = {each.attempt_id for each, settled in zip(reports, found, strict=True) if settled is None}
            done = [row["attempt_id"] for row in rows if row["attempt_id"] not in busy]
            if done:
                await connection.execute(_SQL["stamp_recovered"], done)
            return [settled for settled in found if settled is not None], len(done)

        return await self._database.atomically(work)

    async def gather_families(self, limit: int) -> list[UUID]:
        """End parents whose children have all ended; returns them."""

        async def work(connection: Connection) -> list[UUID]:
            parents = [row["id"] for row in await connection.fetch(_SQL["lock_families"], found)]
            # A later statement: its snapshot sees every child that was added before we had the locks.
            return [row["id"] for row in await connection.fetch(_SQL["gather_families"], parents)]

        found = [row["id"] for row in await self._database.fetch(_SQL["find_families"], limit)]
        return await self._database.atomically(work) if found else []

    async def read_clock(self) -> float:
        """The database's clock, in seconds since 1970."""
        return float(await self._database.fetchval(_SQL["read_clock"]))

    async def _complete_attempts(self, reports: Sequence[Report]) -> dict[int, Settled]:
        chosen: dict[UUID, Report] = {}
        for each in reports:
            if each.kind is Kind.RESULT and _is_whole(each.body):
                chosen.setdefault(each.attempt_id, each)
        if not chosen:
            return {}
        rows = await self._database.fetch(_SQL["complete_attempts"], [_ending(each) for each in chosen.values()])
        return {id(chosen[row["attempt_id"]]): _completed(row) for row in rows}

    async def _settle_round(self, connection: Connection, reports: Sequence[Report]) -> list[Settled | None]:
        if not reports:
            return []
        locked = await connection.fetch(_SQL["lock_reported"], [each.attempt_id for each in reports])
        task_of = {row["attempt_id"]: row["task_id"] for row in locked}
        absent = [each.attempt_id for each in reports if each.attempt_id not in task_of]
        busy = {row["id"] for row in await connection.fetch(_SQL["find_attempts"], absent)} if absent else set()
        mine = [each for each in reports if each.attempt_id in task_of]
        # A second report about a task is decided in a later round, by what the first one left.
        chosen = [
            each
            for each, is_first in zip(mine, first_of_each(task_of[each.attempt_id] for each in mine), strict=True)
            if is_first
        ]
        settled = await self._settle_attempts(connection, [each for each in chosen if each.kind is not Kind.HEARTBEAT])
        settled |= await self._beat_attempts(connection, [each for each in chosen if each.kind is Kind.HEARTBEAT])
        return [
            settled.get(id(each)) or (None if each.attempt_id in task_of or each.attempt_id in busy else _missing(each))
            for each in reports
        ]

    async def _settle_attempts(self, connection: Connection, reports: Sequence[Report]) -> dict[int, Settled]:
        if not reports:
            return {}
        rows = await connection.fetch(_SQL["settle_attempts"], [_ending(each) for each in reports])
        return _by_report(reports, rows)

    async def _beat_attempts(self, connection: Connection, reports: Sequence[Report]) -> dict[int, Settled]:
        if not reports:
            return {}
        rows = await connection.fetch(_SQL["beat_attempts"], [_heartbeat(each) for each in reports])
        return _by_report(reports, rows)


def _by_report(reports: Sequence[Report], rows: Sequence[Any]) -> dict[int, Settled]:
    found = {row["attempt_id"]: row for row in rows}
    return {id(each): _settled(each.kind, found[each.attempt_id]) for each in reports if each.attempt_id in found}


def _settled(kind: Kind, row: Any) -> Settled:
    verdict, outcome = Verdict(row["verdict"]), row["outcome"]
    is_heartbeat = kind is Kind.HEARTBEAT
    return Settled(
        attempt_id=row["attempt_id"],
        kind=kind,
        verdict=verdict,
        outcome=outcome,
        write=classify(kind, verdict, outcome),
        task_id=row["task_id"],
        agent=row["agent"],
        cancel_requested=is_heartbeat and row["cancel_requested"],
        superseded=() if is_heartbeat else tuple(row["superseded"] or ()),
    )


def _completed(row: Any) -> Settled:
    """What every row of complete_attempts means; the common end is spared the look at what it might have been."""
    attempt_id, task_id, agent = row
    return Settled(
        attempt_id, Kind.RESULT, Verdict.COMPLETE, "completed", WriteOutcome.APPLIED, task_id, agent, False, ()
    )


def _is_whole(body: Body) -> bool:
    """Whether a success brings its result along, or has none."""
    return isinstance(body, ResultBody) and not body.result_stored


def _missing(report: Report) -> Settled:
    return Settled(report.attempt_id, report.kind, Verdict.MISSING)


def _ending(report: Report) -> dict[str, Any]:
    """The report as the row that settle_attempts takes; what is not said is left out: Postgres reads every key."""
    body = report.body
    if isinstance(body, HeartbeatBody):
        raise AssertionError("a heartbeat ends nothing")  # noqa: TRY004 - a fault of ours, not of a caller
    row: dict[str, Any] = {
        "attempt_id": report.attempt_id,
        "trace_id": body.trace_id,
        "trace_state": body.trace_state,
        "used_tokens": rate_tokens(body.usage),
    }
    if "usage" in body.model_fields_set:
        # Not given is not the same as an empty list: only the second says that no model was called.
        row["usage"] = [each.model_dump(mode="json", exclude_none=True) for each in body.usage]
    if isinstance(body, FailureBody):
        error = {"reason": body.reason, "message": body.message}
        row |= {
            "failed": True,
            "error": error,
            "retryable": body.retryable,
            "retry_after": body.retry_after_seconds,
            # Whether the agent failed or refused its input is what its circuit breaker goes by.
            "report": {"retryable": body.retryable},
        }
    else:
        row["confidence"] = body.confidence
        row["pages"] = body.pages
        row["result_stored"] = body.result_stored or None
        row["report"] = _quality(body)
        if report.result is not None:
            # Encoded once, when it was read.
            row["result"] = orjson.Fragment(report.result)
    return {name: value for name, value in row.items() if value is not None}


def _quality(body: ResultBody) -> dict[str, Any] | None:
    said: dict[str, Any] = {"damage": body.damage} if body.damage else {}
    if body.cleaned_characters:
        said["cleaned_characters"] = body.cleaned_characters
    return said or None


def _heartbeat(report: Report) -> dict[str, Any]:
    body = report.body
    if not isinstance(body, HeartbeatBody):
        raise AssertionError("only a heartbeat extends a lease")  # noqa: TRY004 - a fault of ours, not of a caller
    said = {"pages_done": body.pages_done, "pages_total": body.pages_total, "step": body.step}
    return {"attempt_id": report.attempt_id, **said}
