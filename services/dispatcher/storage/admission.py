"""The claim of agents with options: facts from the database, a decision in Python, one lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from services.dispatcher.policy.admission import (
    Admission,
    Candidate,
    Pick,
    Room,
    Rules,
    Share,
    admit,
    lines_of,
    projected_tokens,
)
from shared.contract.ids import uuid7
from shared.db.pool import Connection
from shared.db.statements import load

_SQL = load("services.dispatcher.storage", "admission.sql")
_LOOK_BEHIND = 20
"""How many tasks behind those that fit are looked at, where smaller ones may go first."""
_CLOSED = Decimal(-1)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An agent's room and its candidates, read under its lock."""

    row: Mapping[str, Any]
    candidates: list[Candidate]
    depth: int | None

    @property
    def urgency(self) -> Any:
        """Agents are served by the place of their first task."""
        return min(each.place for each in self.candidates)


class PolicyClaim:
    """One claim inside the caller's transaction, whose agents' rows are locked."""

    def __init__(self, connection: Connection, replica: str, lease_seconds: float) -> None:
        self._connection = connection
        self._replica = replica
        self._lease_seconds = lease_seconds

    async def lease(self, agents: Sequence[str], limit: int) -> list[Any]:
        """Lease up to `limit` tasks of these agents; rows as those of claim_tasks."""
        rooms = await self._connection.fetch(_SQL["read_room"].sql, list(agents))
        waiting = [await self._look(row, limit) for row in rooms]
        waiting = sorted((each for each in waiting if each.candidates), key=lambda each: each.urgency)
        purses = await self._purses(waiting)
        leased: list[Any] = []
        for each in waiting:
            if len(leased) == limit:
                break
            leased += await self._serve(each, purses, limit - len(leased))
        return leased

    async def _look(self, row: Any, limit: int) -> _Waiting:
        by_customer = row["fair_share"] or row["has_purses"]
        statement = "list_candidates_by_customer" if by_customer else "list_candidates"
        depth = limit + _LOOK_BEHIND if row["backfill"] else limit
        found = await self._connection.fetch(_SQL[statement].sql, row["agent"], depth)
        candidates = [
            Candidate(
                each["id"], each["customer"], each["priority"], each["created_at"],
                projected_tokens(each["estimated_tokens"] or row["default_tokens"], row["expected_seconds"]),
                each["overtaken"],
            )
            for each in found
        ]  # fmt: skip
        return _Waiting(row, candidates, found[0]["depth"] if found and by_customer else None)

    async def _purses(self, waiting: Sequence[_Waiting]) -> dict[str, Decimal]:
        """What customers' budgets leave; nothing for one whose budget another replica is deciding about."""
        named = {c.customer for each in waiting if each.row["has_purses"] for c in each.candidates if c.customer}
        if not named:
            return {}
        locked = {row["name"] for row in await self._connection.fetch(_SQL["lock_customers"].sql, sorted(named))}
        # A later statement: its snapshot sees what was reserved before we had the locks.
        rows = await self._connection.fetch(_SQL["read_purses"].sql, sorted(named))
        return {row["name"]: row["cost_left"] if row["name"] in locked else _CLOSED for row in rows}

    async def _serve(self, waiting: _Waiting, purses: dict[str, Decimal], most: int) -> list[Any]:
        row = waiting.row
        agent = row["agent"]
        shares = await self._read_shares(agent) if row["fair_share"] else {}
        limits = (row["slots"], row["tokens_left"], row["max_tpm"], row["is_idle"])
        admission = admit(
            lines_of(waiting.candidates, waiting.depth),
            Room(*limits, cost_left=row["cost_left"], cost=row["expected_cost"]),
            Rules(
                overtakes=row["backfill_limit"] if row["backfill"] else 0,
                weights=row["customer_weights"] if row["fair_share"] else None,
            ),
            most=most,
            purses=purses,
            shares=shares,
        )
        picks = await self._allowed_to_overtake(admission)
        if not picks:
            return []
        leased = await self._lease_picked(picks)
        await self._account(row, {each.candidate.task_id: each.candidate for each in picks}, leased, purses)
        if admission.shares:
            await self._write_shares(agent, admission.shares)
        return leased

    async def _read_shares(self, agent: str) -> dict[str, Share]:
        rows = await self._connection.fetch(_SQL["read_shares"].sql, agent)
        return {row["customer"]: Share(row["started"], row["finished"]) for row in rows}

    async def _allowed_to_overtake(self, admission: Admission) -> list[Pick]:
        """The picks; without those that overtake when that cannot be counted, for somebody else holds the row."""
        if not admission.overtaken:
            return admission.picks
        tasks = sorted(admission.overtaken)
        times = [admission.overtaken[each] for each in tasks]
        counted = await self._connection.fetch(_SQL["count_overtakings"].sql, tasks, times)
        if len(counted) == len(tasks):
            return admission.picks
        return [each for each in admission.picks if not each.overtakes]

    async def _lease_picked(self, picks: Sequence[Pick]) -> list[Any]:
        return await self._connection.fetch(
            _SQL["lease_picked"].sql,
            [each.candidate.task_id for each in picks],
            [each.candidate.tokens for each in picks],
            [each.is_oversized for each in picks],
            self._replica,
            [uuid7() for _ in picks],
            self._lease_seconds,
        )

    async def _account(
        self, row: Any, tasks: Mapping[UUID, Candidate], leased: Sequence[Any], purses: dict[str, Decimal]
    ) -> None:
        """Reserve what the leased attempts may cost, where a budget asks for it."""
        cost = row["expected_cost"]
        customers = [tasks[each["task_id"]].customer for each in leased]
        paying = [
            (each["attempt_id"], row["agent"], customer, cost)
            for each, customer in zip(leased, customers, strict=True)
            if row["cost_left"] is not None or (customer or "") in purses
        ]
        if not paying:
            return
        await self._connection.execute(_SQL["reserve_costs"].sql, *map(list, zip(*paying, strict=True)))
        for customer in customers:
            if customer is not None and customer in purses:
                purses[customer] -= cost

    async def _write_shares(self, agent: str, shares: Mapping[str, Share]) -> None:
        names = list(shares)
        await self._connection.execute(
            _SQL["write_shares"].sql, agent, names, [shares[name].started for name in names],
            [shares[name].finished for name in names],
        )  # fmt: skip
