"""Rows for tests, made with the defaults of the schema."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg


async def make_agent(connection: asyncpg.Connection, name: str = "parser", **settings: Any) -> str:
    """An agent; settings are columns of lockkeeper.agents."""
    columns = {"name": name, "target": name, **settings}
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    await connection.execute(
        f"INSERT INTO lockkeeper.agents ({', '.join(columns)}) VALUES ({places})", *columns.values()
    )
    return name


async def make_tasks(connection: asyncpg.Connection, count: int = 1, **columns: Any) -> list[UUID]:
    """Waiting tasks in order; columns are those of lockkeeper.tasks, the agent is `parser` unless named."""
    named = {"agent": "parser", **columns}
    places = ", ".join(f"${number}" for number in range(2, len(named) + 2))
    rows = await connection.fetch(
        f"INSERT INTO lockkeeper.tasks ({', '.join(named)}, created_at) "
        f"SELECT {places}, lockkeeper.clock() + n * interval '1 microsecond' FROM generate_series(1, $1::int) AS n "
        "RETURNING id",
        count,
        *named.values(),
    )
    return [row["id"] for row in rows]


async def settle(connection: asyncpg.Connection, attempts: list[UUID], used_tokens: int = 0) -> None:
    """End attempts as completed, as the receiver does, without the callback around it."""
    await connection.execute(
        "WITH task AS (UPDATE lockkeeper.tasks SET status = 'completed', finished_at = lockkeeper.clock(), "
        "lease_expires_at = NULL, locked_by = NULL, reserved_tpm = 0, version = version + 1, verb = 'complete' "
        "WHERE attempt_id = ANY ($1) RETURNING *) "
        "INSERT INTO lockkeeper.task_events "
        "(task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor) "
        "SELECT id, version, clock_timestamp(), verb, status, attempt, agent, 0, 0, session_user FROM task",
        attempts,
    )
    await connection.execute(
        "INSERT INTO lockkeeper.token_spending (agent, at, tpm) SELECT agent, lockkeeper.clock(), $2::bigint "
        "FROM lockkeeper.task_attempts WHERE id = ANY ($1) AND $2::bigint > 0",
        attempts,
        used_tokens,
    )
    await connection.execute(
        "UPDATE lockkeeper.task_attempts SET status = 'completed', finished_at = lockkeeper.clock(), used_tokens = $2 "
        "WHERE id = ANY ($1)",
        attempts,
        used_tokens,
    )
