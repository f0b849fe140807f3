"""The statements of an agent: read the input, keep the result. A connection lives for one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg

from shared.agent_kit.settings import AgentSettings
from shared.agent_kit.workspace import workspace_client
from shared.contract.callback import ResultBody
from shared.contract.errors import MisconfiguredError
from shared.contract.lifecycle import ATTEMPT_TERMINAL, TERMINAL
from shared.db.connecting import connect
from shared.db.pool import translated
from shared.db.statements import load

_SQL = load("shared.agent_kit")


@dataclass(frozen=True, slots=True)
class AgentInput:
    """What an attempt is given. `volume_path` is the document's, when the task has one."""

    task_id: UUID
    attempt_id: UUID
    attempt: int
    agent: str
    customer: str | None
    input: dict[str, Any]
    options: dict[str, Any]
    document_name: str | None
    volume_path: str | None
    sha256: str | None
    bytes: int | None
    is_wanted: bool


class AttemptStorage:
    """The database as one attempt sees it."""

    def __init__(self, settings: AgentSettings) -> None:
        self._url = settings.database_url.get_secret_value()
        self._password = _password(settings, self._url)

    async def read_input(self, attempt_id: UUID) -> AgentInput | None:
        """The input of this attempt; None when there is no such attempt."""
        async with self._connection() as connection:
            row = await connection.fetchrow(_SQL["read_input"].sql, attempt_id)
        return None if row is None else _input(row)

    async def read_pack(self, pack_id: UUID) -> list[UUID]:
        """The attempts that share this run and are still wanted, in order."""
        async with self._connection() as connection:
            return [row["attempt_id"] for row in await connection.fetch(_SQL["read_pack"].sql, pack_id)]

    async def store_result(self, attempt_id: UUID, body: ResultBody, result: dict[str, Any]) -> None:
        """Keep the result of this attempt; a second one of the same attempt changes nothing."""
        report = body.model_dump(mode="json", exclude={"result"})
        async with self._connection() as connection:
            await connection.execute(_SQL["store_result"].sql, attempt_id, result, body.confidence, body.pages, report)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        async with translated():
            connection = await connect(self._url, self._password, name="agent")
            try:
                yield connection
            finally:
                await connection.close(timeout=5)


def _password(settings: AgentSettings, url: str) -> Callable[[], Awaitable[str]] | None:
    if urlsplit(url).password is not None or not settings.database_instance:
        return None

    async def mint() -> str:
        return await asyncio.to_thread(_mint, settings.database_instance)

    return mint


def _mint(instance: str) -> str:
    client = workspace_client()
    credential = (
        client.postgres.generate_database_credential(instance)
        if "/" in instance  # the resource name of an endpoint: projects/…/branches/…/endpoints/…
        else client.database.generate_database_credential(instance_names=[instance])
    )
    if not credential.token:
        raise MisconfiguredError("the workspace gave no database credential")
    return credential.token


def _input(row: asyncpg.Record) -> AgentInput:
    task_input = row["input"] or {}
    return AgentInput(
        task_id=row["task_id"],
        attempt_id=row["attempt_id"],
        attempt=row["attempt"],
        agent=row["agent"],
        customer=row["customer"],
        input=task_input,
        options=row["options"] or {},
        document_name=row["document_name"] or task_input.get("name"),
        volume_path=row["volume_path"] or task_input.get("volume_path"),
        sha256=row["sha256"],
        bytes=row["bytes"],
        is_wanted=row["task_status"] not in TERMINAL and row["status"] not in ATTEMPT_TERMINAL,
    )
