"""The database as services see it: a small pool with deadlines, and errors by what to do about them.

Nobody waits without an end: acquiring, connecting and each statement have a time limit. What the
driver raises is translated here and nowhere else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from shared.contract.errors import MisconfiguredError, RejectedError, TransientError

PINNED_PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
}
"""For services whose statements run for every task: one plan by index, made once per connection. Statistics
lag behind a queue that fills and drains, and a plan made for an empty table is a disaster on a full one."""

Password = str | Callable[[], Awaitable[str]]
Connection = asyncpg.Connection | PoolConnectionProxy
Result = TypeVar("Result")

_RETRYABLE = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.InvalidCachedStatementError)
_TRANSIENT = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The driver's own state of a connection that the server is just closing.
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    OSError,
    TimeoutError,
    *_RETRYABLE,
)
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


def translate(error: BaseException) -> Exception | None:
    """The project's own error for one that the driver raised, or None for an error of our own making."""
    match error:
        case asyncpg.InvalidCatalogNameError():
            return MisconfiguredError(f"the database does not exist: {error}")
        case asyncpg.DataError() | asyncpg.IntegrityConstraintViolationError():
            return RejectedError(f"the database refused the value: {error}", reason="value_refused")
        case _ if isinstance(error, _TRANSIENT):
            said = str(error) or type(error).__name__
            return TransientError(f"the database is not available: {said}", reason="database_unavailable")
        case _:
            return None


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Inside this block the driver's errors become TransientError, RejectedError or MisconfiguredError."""
    try:
        yield
    except (*_TRANSIENT, *_REFUSED, asyncpg.InvalidCatalogNameError) as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


async def connect(
    url: str, password: Password | None = None, *, name: str, timeout: float = 10, statement_seconds: float | None = 30
) -> asyncpg.Connection:
    """One connection of its own, outside any pool: for a listener or a script. Without seconds, no statement is cut."""
    connection = await asyncpg.connect(
        url, password=password, timeout=timeout, command_timeout=statement_seconds,
        server_settings={"application_name": name},
    )  # fmt: skip
    await set_codecs(connection)
    return connection


async def set_codecs(connection: Connection) -> None:
    """Jsonb travels as Python objects on this connection."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary",
        encoder=lambda value: b"\x01" + orjson.dumps(value, default=str),
        decoder=lambda data: orjson.loads(data[1:]),
    )  # fmt: skip


async def _keep(_: Connection) -> None:
    """No reset on release: no statement of ours leaves anything behind in a session."""


class Database:
    """A pool that is opened once, heals by itself, and never lets a caller wait past its deadline."""

    def __init__(
        self, url: str, password: Password | None = None, *, name: str, size: int = 5, acquire_seconds: float = 5,
        statement_seconds: float = 30, pinned_plans: bool = False,
    ) -> None:  # fmt: skip
        self._url = url
        self._password = password
        self._size = size
        self._acquire_seconds = acquire_seconds
        self._statement_seconds = statement_seconds
        self._session = {"application_name": name, "timezone": "UTC", **(PINNED_PLANS if pinned_plans else {})}
        self._pool: asyncpg.Pool | None = None
        self.waits_timed_out = 0

    async def open(self) -> None:
        """Make the pool; connections are opened when they are first needed, so a sleeping database stays asleep."""
        self._pool = await asyncpg.create_pool(
            self._url, password=self._password, min_size=0, max_size=self._size, init=set_codecs, reset=_keep,
            timeout=10, command_timeout=self._statement_seconds, max_inactive_connection_lifetime=300,
            server_settings=self._session,
        )  # fmt: skip

    async def close(self) -> None:
        """Close every connection; those still busy get five seconds."""
        if self._pool is None:
            return
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except TimeoutError:
            self._pool.terminate()
        self._pool = None

    async def renew_connections(self) -> None:
        """Let every connection be replaced at its next use: before the platform cuts old ones itself."""
        if self._pool is not None:
            await self._pool.expire_connections()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for one caller. Raises TransientError when none is free within the deadline."""
        if self._pool is None:
            raise TransientError("the database pool is closed", reason="database_unavailable")
        async with translated():
            try:
                connection = await self._pool.acquire(timeout=self._acquire_seconds)
            except TimeoutError:
                self.waits_timed_out += 1
                raise
            try:
                yield connection
            finally:
                await asyncio.shield(self._pool.release(connection, timeout=5))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A READ COMMITTED transaction on a connection of its own. No network inside, please."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def atomically(self, work: Callable[[Connection], Awaitable[Result]], *, tries: int = 3) -> Result:
        """Run `work` in a transaction; a deadlock or serialization failure runs the whole of it again."""
        for attempt in range(1, tries + 1):
            try:
                async with self.transaction() as connection:
                    return await work(connection)
            except TransientError as error:
                if attempt == tries or not isinstance(error.__cause__, _RETRYABLE):
                    raise
                await asyncio.sleep(0.05 * attempt * (0.5 + random.random()))  # noqa: S311 - jitter
        raise AssertionError("unreachable")

    async def fetch(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        """All rows of one statement in its own transaction."""
        async with self.connection() as connection:
            return await connection.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> asyncpg.Record | None:
        """The first row, or None."""
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first column of the first row, or None."""
        async with self.connection() as connection:
            return await connection.fetchval(sql, *args)

    async def execute(self, sql: str, *args: Any) -> str:
        """The command tag of one statement."""
        async with self.connection() as connection:
            return await connection.execute(sql, *args)

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """One statement for many rows, in one transaction."""
        async with self.connection() as connection:
            await connection.executemany(sql, rows)
