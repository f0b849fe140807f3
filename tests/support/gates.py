"""The real database of a service with a gate before each statement: a test holds it back, rewrites it, sees it.

Everything below the gate is the service's own: its storage class, its SQL, its role, a real connection. A
test that holds no gate and rewrites nothing changes nothing but the clock.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from shared.db.pool import Database, only_reads

_NAME = re.compile(r"-- name: (\w+)")

PRIVATE = frozenset({"act_as", "record_actions", "read_agent"})
"""Statements that touch nothing which anybody else may change meanwhile: no gate, so that fewer orders are to be tried."""

Rewrite = Mapping[str, Callable[[str], str]]
"""`service.statement` to the change of its text."""


@dataclass
class Clock:
    """What lockkeeper.clock() says on every gated connection; it stands still until a test moves it."""

    now: datetime = datetime(2030, 1, 1, tzinfo=UTC)

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


async def _open(_: str) -> None:
    """No gate."""


@dataclass
class Gates:
    """What stands between a service and its connection."""

    clock: Clock
    rewrite: Rewrite = field(default_factory=dict)
    pass_gate: Callable[[str], Awaitable[None]] = _open
    pid: int = 0
    deadlocks: int = 0


class _Transaction:
    """A transaction whose end passes a gate. Its beginning does not: it does nothing before its first statement."""

    def __init__(self, transaction: Any, gates: Gates) -> None:
        self._transaction = transaction
        self._gates = gates

    async def __aenter__(self) -> None:
        await self._transaction.__aenter__()

    async def __aexit__(self, *error: object) -> Any:
        if error[0] is None:
            await self._gates.pass_gate("commit")
        return await self._transaction.__aexit__(*error)


class _Connection:
    """A connection whose every statement passes a gate."""

    def __init__(self, connection: Any, service: str, gates: Gates) -> None:
        self._connection = connection
        self._service = service
        self._gates = gates

    def transaction(self, **options: Any) -> _Transaction:
        return _Transaction(self._connection.transaction(**options), self._gates)

    async def _call(self, method: str, sql: str, *args: Any, **options: Any) -> Any:
        if self._connection.is_in_transaction() or only_reads(sql):
            return await self._pass(method, sql, *args, **options)
        # A statement by itself has done its work some time before it is committed.
        async with self.transaction():
            return await self._pass(method, sql, *args, **options)

    async def _pass(self, method: str, sql: str, *args: Any, **options: Any) -> Any:
        gates = self._gates
        match = _NAME.search(sql)
        name = match[1] if match else "statement"
        change = gates.rewrite.get(f"{self._service}.{name}")
        if change is not None:
            sql = change(sql)
        if name not in PRIVATE:
            await gates.pass_gate(name)
        try:
            return await getattr(self._connection, method)(sql, *args, **options)
        except asyncpg.DeadlockDetectedError:
            gates.deadlocks += 1
            raise

    async def fetch(self, sql: str, *args: Any) -> Any:
        return await self._call("fetch", sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        return await self._call("fetchrow", sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        return await self._call("fetchval", sql, *args)

    async def execute(self, sql: str, *args: Any) -> Any:
        return await self._call("execute", sql, *args)


class GatedDatabase(Database):
    """One connection of a service, behind gates."""

    def __init__(self, url: str, service: str, gates: Gates) -> None:
        super().__init__(url, name=f"gated-{service}", size=1)
        self._service = service
        self._gates = gates
        self._told: datetime | None = None

    @asynccontextmanager
    async def connection(self, *, until: float | None = None) -> AsyncIterator[Any]:
        async with super().connection(until=until) as connection:
            now = self._gates.clock.now
            if self._told != now:
                await connection.execute("SELECT set_config('lockkeeper.clock', $1, false)", now.isoformat())
                self._told = now
            self._gates.pid = connection.get_server_pid()
            yield _Connection(connection, self._service, self._gates)
