"""The database as the cost attributor sees it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from services.cost_attributor.messages import Attribution, Bill, CostRequest, EndedAttempt, RunShare
from services.cost_attributor.policy import as_row
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

    async def record_bills(self, bills: Sequence[Bill]) -> tuple[list[UUID], set[UUID]]:
        """Write lines of the bill and sums: the tasks that changed, and the attempts that somebody held."""

        async def write(connection: Connection) -> tuple[list[UUID], set[UUID]]:
            wanted = {bill.attempt_id for bill in bills}
            locked = await self._lock(connection, sorted(wanted))
            await connection.execute(_SQL["record_bills"], [_bill(bill) for bill in bills if bill.attempt_id in locked])
            tasks = await self._roll_up(connection, sorted(locked), [None] * len(locked))
            return tasks, wanted - locked

        return await self._database.atomically(write)

    async def take_cost_request(self, lease_seconds: float) -> CostRequest | None:
        """One open request, leased to this replica."""
        row = await self._database.fetchrow(_SQL["take_cost_request"], self._replica, lease_seconds)
        return None if row is None else CostRequest(**row)

    async def list_run_shares(self, from_at: datetime, to_at: datetime) -> list[RunShare]:
        """The runs submitted in [from, to) with all that they carried."""
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

    async def _lock(self, connection: Connection, attempts: Sequence[UUID]) -> set[UUID]:
        return {row["id"] for row in await connection.fetch(_SQL["lock_attempts"], list(attempts))}

    async def _roll_up(
        self, connection: Connection, attempts: Sequence[UUID], findings: Sequence[str | None]
    ) -> list[UUID]:
        rows = await connection.fetch(_SQL["roll_up_attempts"], list(attempts), list(findings))
        return [row["task_id"] for row in rows]


def _bill(bill: Bill) -> dict[str, object]:
    record = bill.record
    return {
        "record_id": record.record_id, "attempt_id": bill.attempt_id, "task_id": bill.task_id,
        "quantity": str(bill.quantity), "unit": record.unit, "sku": record.sku,
        "amount": None if bill.amount is None else str(bill.amount), "currency": record.currency,
        "record_type": record.record_type, "usage_start_at": record.usage_start_at, "usage_end_at": record.usage_end_at,
    }  # fmt: skip
