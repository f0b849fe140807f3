"""The ledger's lines behind the figures, and what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from services.console.policy.figures import Figure
from shared.contract.task_filter import TaskFilter
from shared.db.pool import Database
from shared.db.statements import load

_SQL = load("services.console.storage", "ledger.sql")


class LedgerStorage:
    """Reads lines and sums of lines; writes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sum_lines(self, group_by: str, chosen: TaskFilter) -> list[Any]:
        """Costs by model, or by the outcome of the attempt."""
        return await self._database.fetch(_SQL["sum_lines"].sql, *chosen.arguments(), group_by)

    async def list_lines(
        self, chosen: TaskFilter, figure: Figure, after: tuple[UUID | None, str, str], limit: int
    ) -> list[Any]:
        """A page of the lines that make a figure."""
        return await self._database.fetch(
            _SQL["list_lines"].sql, *chosen.arguments(), *figure.arguments(), *after, limit
        )

    async def sum_chosen_lines(self, chosen: TaskFilter, figure: Figure) -> list[Any]:
        """What all of them add up to, by currency."""
        return await self._database.fetch(_SQL["sum_chosen_lines"].sql, *chosen.arguments(), *figure.arguments())

    async def list_line_versions(self, lines: Sequence[Any]) -> list[Any]:
        """What these lines said before."""
        keys = [[line[name] for line in lines] for name in ("attempt_id", "source", "record_id")]
        return await self._database.fetch(_SQL["list_line_versions"].sql, *keys)

    async def reconcile_costs(self, chosen: TaskFilter) -> list[Any]:
        """Estimate against bill by agent and part."""
        return await self._database.fetch(_SQL["reconcile_costs"].sql, *chosen.arguments())

    async def forecast_costs(self, chosen: TaskFilter) -> list[Any]:
        """What waits, and what it will cost, by agent."""
        return await self._database.fetch(_SQL["forecast_costs"].sql, *chosen.arguments())

    async def list_budgets(self) -> list[Any]:
        """Budgets of agents and customers."""
        return await self._database.fetch(_SQL["list_budgets"].sql)

    async def list_budget_alerts(self, limit: int) -> list[Any]:
        """What was told of them, newest first."""
        return await self._database.fetch(_SQL["list_budget_alerts"].sql, limit)
