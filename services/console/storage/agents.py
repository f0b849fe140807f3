"""Agents: settings, their use, their history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "agents.sql")

SETTINGS = (
    "target", "description", "max_concurrent_tasks", "max_tpm", "lease_seconds", "max_attempts", "expected_seconds",
    "max_run_seconds", "default_tokens", "tokens_per_page", "backfill", "fair_share", "tasks_per_run", "paused",
    "options", "backfill_limit", "customer_weights", "daily_budget", "monthly_budget", "expected_cost",
    "circuit_failures", "circuit_seconds", "learn_estimates",
)  # fmt: skip
"""What a person may set, in the order of the statements' parameters from $2 on."""


class AgentStorage:
    """Reads agents and writes their next versions."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def list_agents(self, name: str | None = None) -> list[Any]:
        """All agents, or one, with the use of their limits."""
        return await self.database.fetch(_SQL["list_agents"].sql, name)

    async def lock_agent(self, connection: Connection, name: str) -> None:
        """Hold the agent's row."""
        await connection.execute(_SQL["lock_agent"].sql, name)

    async def read_agent(self, connection: Connection, name: str) -> Any:
        """Its settings, or None."""
        return await connection.fetchrow(_SQL["read_agent"].sql, name)

    async def create_agent(
        self, connection: Connection, name: str, settings: Mapping[str, Any], actor: str
    ) -> str | None:
        """Make it; None when somebody else just did. A setting that is None or missing gets its default."""
        values = [settings.get(each) for each in SETTINGS]
        made: str | None = await connection.fetchval(_SQL["create_agent"].sql, name, *values, actor)
        return made

    async def change_agent(self, connection: Connection, name: str, settings: Mapping[str, Any], actor: str) -> None:
        """Write its next version with all of its settings."""
        await connection.execute(_SQL["change_agent"].sql, name, *(settings[each] for each in SETTINGS), actor)

    async def list_changes(self, name: str, limit: int) -> list[Any]:
        """Its versions, newest first."""
        return await self.database.fetch(_SQL["list_changes"].sql, name, limit)
