"""The database as the cost attributor sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from services.cost_attributor.messages import (
    Attribution,
    Bill,
    Budget,
    CostRequest,
    EndedAttempt,
    Repriced,
    Repricing,
    RunBill,
    RunShare,
)
from services.cost_attributor.policy import as_row, differences
from shared.contract.errors import TransientError
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = {name: statement.sql for name, statement in load("services.cost_attributor").items()}


class CostStorage:
    """The ledger, its sums, and requests for the bill."""

    def __init__(self, database: Database, replica: str) -> None:
        self._database = database
        self._replica = replica

    async def take_unattributed(self, limit: int) -> list[EndedAttempt]:
        """Ended attempts to look at now; no other replica is given them for a few seconds."""
        rows = await self._database.fetch(_SQL["take_unattributed"], limit)
        return [EndedAttempt(**row) for row in rows]

    async def reopen_attempts(self, attempts: Sequence[UUID]) -> None:
        """Look once more at those of these whose usage was given up."""
        await self._database.execute(_SQL["reopen_attempts"], list(attempts))

    async def record(self, found: Sequence[Attribution]) -> list[UUID]:
        """Write lines and sums; returns the tasks that changed. Attempts that somebody holds come later."""

        async def write(connection: Connection) -> list[UUID]:
            locked = await self._lock(connection, [each.attempt.attempt_id for each in found])
            mine = [each for each in found if each.attempt.attempt_id in locked]
            lines = [as_row(line) for each in mine for line in each.lines]
            if lines:
                await connection.execute(_SQL["record_lines"], lines)
            findings = [each.finding.value for each in mine]
            return await self._roll_up(connection, [each.attempt.attempt_id for each in mine], findings)

        return await self._database.atomically(write)

    async def list_changed_runs(self, bills: Sequence[Bill]) -> set[int]:
        """The runs of which the ledger does not say all of this yet."""
        rows = await self._database.fetch(_SQL["list_changed_bills"], [_bill(bill) for bill in bills])
        changed = {(row["record_id"], row["attempt_id"]) for row in rows}
        return {bill.record.run_id for bill in bills if (bill.record.record_id, bill.attempt_id) in changed}

    async def record_bills(self, bills: Sequence[Bill]) -> tuple[list[UUID], set[int]]:
        """Write lines of the bill and sums: the tasks that changed, and the runs of which somebody held an attempt.

        A run is written whole or not at all, so that the parts of a shared record add up to it at every commit.
        """

        async def write(connection: Connection) -> tuple[list[UUID], set[int]]:
            locked = await self._lock(connection, sorted({bill.attempt_id for bill in bills}))
            held = {bill.record.run_id for bill in bills if bill.attempt_id not in locked}
            mine = [bill for bill in bills if bill.record.run_id not in held]
            if not mine:
                return [], held
            await connection.execute(_SQL["record_bills"], [_bill(bill) for bill in mine])
            attempts = sorted({bill.attempt_id for bill in mine})
            return await self._roll_up(connection, attempts, [None] * len(attempts)), held

        return await self._database.atomically(write)

    async def record_run_bills(self, bills: Sequence[RunBill], final_after_seconds: float) -> None:
        """Write how far the bill of each run is known: final, when it was read so long after the run's end."""
        columns = [[getattr(bill, each.name) for bill in bills] for each in fields(RunBill)]
        await self._database.execute(_SQL["record_run_bills"], *columns, final_after_seconds)

    async def take_cost_request(self, lease_seconds: float) -> CostRequest | None:
        """One open request, leased to this replica; none while another is being answered anywhere."""

        async def take(connection: Connection) -> CostRequest | None:
            await connection.execute(_SQL["lock_requests"])
            row = await connection.fetchrow(_SQL["take_cost_request"], self._replica, lease_seconds)
            return None if row is None else CostRequest(**row)

        return await self._database.atomically(take)

    async def extend_cost_request(self, request: UUID, lease_seconds: float) -> bool:
        """Go on holding a request; False when it went to another replica."""
        held = await self._database.fetchval(_SQL["extend_cost_request"], request, self._replica, lease_seconds)
        return held is not None

    async def schedule_cost_request(self, every_seconds: float, window_seconds: float) -> UUID | None:
        """Ask for the bill of the last `window_seconds`, where nobody did within `every_seconds`."""

        async def ask(connection: Connection) -> UUID | None:
            await connection.execute(_SQL["lock_requests"])
            made: UUID | None = await connection.fetchval(_SQL["schedule_cost_request"], every_seconds, window_seconds)
            return made

        return await self._database.atomically(ask)

    async def list_run_shares(self, from_at: datetime, to_at: datetime) -> list[RunShare]:
        """The runs submitted in [from, to), and earlier ones that are not final, with all that they carried."""
        return [RunShare(**row) for row in await self._database.fetch(_SQL["list_run_shares"], from_at, to_at)]

    async def list_given_up(self, from_at: datetime, to_at: datetime) -> list[UUID]:
        """Attempts of [from, to) whose usage was given up."""
        return [row["id"] for row in await self._database.fetch(_SQL["list_given_up"], from_at, to_at)]

    async def finish_cost_request(
        self, request: UUID, status: str, *, attempts: int | None = None, records: int | None = None,
        error: str | None = None,
    ) -> None:  # fmt: skip
        """Answer a request, unless its lease went to another replica."""
        await self._database.execute(
            _SQL["finish_cost_request"], request, self._replica, status, attempts, records, error
        )

    async def postpone_cost_request(self, request: UUID, error: str, seconds: float) -> None:
        """Try a request again after so many seconds."""
        await self._database.execute(_SQL["postpone_cost_request"], request, self._replica, error, seconds)

    async def take_repricing(self, lease_seconds: float) -> Repricing | None:
        """One open wish to price history anew, leased to this replica."""
        row = await self._database.fetchrow(_SQL["take_repricing"], self._replica, lease_seconds)
        return None if row is None else Repricing(**row)

    async def reprice(
        self, wish: Repricing, after_attempt: UUID | None, limit: int, lease_seconds: float
    ) -> Repriced | None:
        """Price the next attempts anew and note how far that is, in one transaction.

        None when the wish went to another replica. Raises TransientError while somebody holds one of the attempts.
        """

        async def write(connection: Connection) -> Repriced | None:
            window = (wish.from_at, wish.to_at)
            rows = await connection.fetch(_SQL["list_to_reprice"], after_attempt, *window, limit)
            attempts = [row["attempt_id"] for row in rows]
            locked = await self._lock(connection, attempts)
            if any(row["is_of_task"] and row["attempt_id"] not in locked for row in rows):
                raise TransientError("an attempt is held by somebody", reason="busy")
            because = f"repricing {wish.id}"
            lines = await connection.fetch(_SQL["reprice_lines"], attempts, *window, wish.models, because)
            changed = [dict(line) for line in lines if line["is_changed"]]
            mine = sorted({line["attempt_id"] for line in changed} & locked)
            tasks = await self._roll_up(connection, mine, ["repriced"] * len(mine))
            held = await connection.fetchval(
                _SQL["advance_repricing"], wish.id, self._replica, attempts[-1] if attempts else after_attempt,
                len(lines), len(changed), differences(changed), lease_seconds,
            )  # fmt: skip
            if held is None:
                raise _LostError
            return Repriced(attempts[-1] if attempts else None, tasks, len(changed))

        try:
            return await self._database.atomically(write)
        except _LostError:
            return None

    async def finish_repricing(self, wish: UUID, status: str, error: str | None = None) -> None:
        """Answer a wish, unless its lease went to another replica."""
        await self._database.execute(_SQL["finish_repricing"], wish, self._replica, status, error)

    async def list_budgets(self) -> list[Budget]:
        """Every budget with what is spent of it in its present period."""
        return [Budget(**row) for row in await self._database.fetch(_SQL["list_budgets"])]

    async def record_alerts(self, alerts: Sequence[tuple[Budget, Decimal]]) -> list[Any]:
        """Write down that these budgets are spent to these shares; the ones that are new in their period."""
        rows = [
            {**{each.name: _plain(getattr(budget, each.name)) for each in fields(Budget)}, "share": str(share)}
            for budget, share in alerts
        ]
        return await self._database.fetch(_SQL["record_alerts"], rows)

    async def _lock(self, connection: Connection, attempts: Sequence[UUID]) -> set[UUID]:
        return {row["id"] for row in await connection.fetch(_SQL["lock_attempts"], list(attempts))}

    async def _roll_up(
        self, connection: Connection, attempts: Sequence[UUID], findings: Sequence[str | None]
    ) -> list[UUID]:
        rows = await connection.fetch(_SQL["roll_up_attempts"], list(attempts), list(findings))
        return [row["task_id"] for row in rows]


class _LostError(Exception):
    """The lease went to another replica; what was written in this transaction must not be."""


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Decimal) else value


def _bill(bill: Bill) -> dict[str, object]:
    record = bill.record
    return {
        "record_id": record.record_id, "attempt_id": bill.attempt_id, "task_id": bill.task_id,
        "quantity": str(bill.quantity), "unit": record.unit, "sku": record.sku,
        "amount": None if bill.amount is None else str(bill.amount), "currency": record.currency,
        "record_type": record.record_type, "usage_start_at": record.usage_start_at, "usage_end_at": record.usage_end_at,
    }  # fmt: skip
