"""The database as services see it: a small pool with deadlines, and errors by what to do about them.

Nobody waits without an end: acquiring, connecting and each statement have a time limit. What the
driver raises is translated here and nowhere else.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from shared.contract.errors import MisconfiguredError, RejectedError, TransientError
from shared.db.connecting import CONNECTION_SECONDS, Connection, Login, Password, Session, set_codecs

__all__ = ["Connection", "Database", "Password", "only_reads", "translate", "translated"]

PINNED_PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
}
"""For services whose statements run for every task: one plan by index, made once per connection. Statistics
lag behind a queue that fills and drains, and a plan made for an empty table is a disaster on a full one."""

Result = TypeVar("Result")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5
_COMMENT = re.compile(r"--[^\n]*")
_WRITES = re.compile(r"\b(insert|update|delete|merge|call|set_config|nextval|pg_\w*(notify|lock|terminate)\w*)\b")

_RETRYABLE = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.InvalidCachedStatementError)
_TRANSIENT = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The driver's own state of a connection that the server is just closing.
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    # While a copy is made of a database it takes no logins.
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    OSError,
    TimeoutError,
    *_RETRYABLE,
)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InvalidCachedStatementError,
    OSError,
)
_AWAY = (
    *_LOST,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidAuthorizationSpecificationError,
)
"""What a login meets while the database restarts, wakes up or waits for a fresh credential."""
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
_UNREADY = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError)
"""A migration or a grant is still to come: this program is newer than its database."""


def translate(error: BaseException) -> Exception | None:
    """The project's own error for one that the driver raised, or None for an error of our own making."""
    match error:
        case asyncpg.InvalidCatalogNameError():
            return MisconfiguredError(f"the database does not exist: {error}")
        case asyncpg.DataError() | asyncpg.IntegrityConstraintViolationError():
            return RejectedError(f"the database refused the value: {error}", reason="value_refused")
        case _ if isinstance(error, _UNREADY):
            return TransientError(f"the database is not ready for this: {error}", reason="database_unready")
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
    except (*_TRANSIENT, *_REFUSED, *_UNREADY, asyncpg.InvalidCatalogNameError) as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


@functools.lru_cache(2_000)
def only_reads(sql: str) -> bool:
    """Whether a statement surely changes nothing, so that asking it twice is asking it once."""
    words = _COMMENT.sub(" ", sql).lower()
    return words.lstrip().startswith(("select", "with")) and _WRITES.search(words) is None


async def _replace(pool: asyncpg.Pool, connection: PoolConnectionProxy) -> None:
    await connection.close(timeout=2)
    await pool.release(connection, timeout=5)


async def _keep(_: Connection) -> None:
    """No reset on release: no statement of ours leaves anything behind in a session."""


class Database:
    """A pool that is opened once, heals by itself, and never lets a caller wait past its deadline.

    While the database restarts, wakes up or has just turned read-only, a caller waits for it within
    `acquire_seconds`; what surely was not applied, and what only reads, is asked again within that time.
    """

    def __init__(
        self, url: str, password: Password | None = None, *, name: str, size: int = 5, acquire_seconds: float = 10,
        statement_seconds: float = 30, pinned_plans: bool = False, life_seconds: float = CONNECTION_SECONDS,
        idle_transaction_seconds: float = 15, branch: str = "",
    ) -> None:  # fmt: skip
        session = {
            "timezone": "UTC",
            "lockkeeper.branch": branch,
            # The server's own limits, a little later than ours: they also hold for a process that stands still.
            "statement_timeout": str(round(statement_seconds * 1000) + 5_000),
            "lock_timeout": str(round(statement_seconds * 1000)),
            # Every name of ours is qualified; nothing is looked for where others may put things.
            "search_path": "pg_catalog",
            # A process that stands still in the middle of a transaction must not hold its locks for ever.
            "idle_in_transaction_session_timeout": str(round(idle_transaction_seconds * 1000)),
            **(PINNED_PLANS if pinned_plans else {}),
        }
        self._login = Login(
            url, password, name=name, life_seconds=life_seconds, statement_seconds=statement_seconds, settings=session
        )
        self._size = size
        self._acquire_seconds = acquire_seconds
        self._pool: asyncpg.Pool | None = None
        self.waits_timed_out = 0

    async def open(self) -> None:
        """Make the pool; connections are opened when they are first needed, so a sleeping database stays asleep."""
        self._pool = await asyncpg.create_pool(
            self._login.url, connect=self._login.open, connection_class=Session, min_size=0, max_size=self._size,
            init=set_codecs, reset=_keep, max_inactive_connection_lifetime=min(300, self._login.life_seconds / 4),
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
        """Let every connection be replaced at its next use: the server that they lead to is the wrong one."""
        if self._pool is not None:
            await self._pool.expire_connections()

    @asynccontextmanager
    async def connection(self, *, until: float | None = None) -> AsyncIterator[Connection]:
        """A connection for one caller. Raises TransientError when none is to be had within the deadline.

        `until` is an earlier deadline on the event loop's clock, of a caller who has waited already.
        """
        pool = self._pool
        if pool is None:
            raise TransientError("the database pool is closed", reason="database_unavailable")
        async with translated():
            connection = await self._acquire(pool, until)
            try:
                yield connection
            except asyncpg.ReadOnlySQLTransactionError:
                await self.renew_connections()
                raise
            finally:
                # Goes on by itself when this is cancelled.
                await pool.release(connection, timeout=5)

    async def _acquire(self, pool: asyncpg.Pool, until: float | None) -> PoolConnectionProxy:
        now = asyncio.get_running_loop().time
        deadline = until or now() + self._acquire_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                # The pool's own deadline would start a task for it, at every statement.
                async with asyncio.timeout_at(max(deadline, now() + 0.001)):
                    connection = await pool.acquire()
            except TimeoutError:
                self.waits_timed_out += 1
                raise
            except _AWAY:
                if now() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            if not connection.is_stale:  # type: ignore[attr-defined]  # a proxy of our Session
                return connection
            await asyncio.shield(_replace(pool, connection))

    @asynccontextmanager
    async def transaction(self, *, until: float | None = None) -> AsyncIterator[Connection]:
        """A READ COMMITTED transaction on a connection of its own. No network inside, please."""
        async with self.connection(until=until) as connection, connection.transaction():
            yield connection

    async def atomically(
        self, work: Callable[[Connection], Awaitable[Result]], *, tries: int = 3, repeatable: bool = False
    ) -> Result:
        """Run `work` in a transaction; one that was refused as a whole (a deadlock, say) is run again.

        With `repeatable` also one whose connection was lost: its effect, if it had one, is the same twice as once.
        """

        async def once(until: float) -> Result:
            async with self.transaction(until=until) as connection:
                return await work(connection)

        def may_repeat(cause: BaseException | None, tried: int) -> bool:
            return (isinstance(cause, _RETRYABLE) and tried < tries) or (repeatable and isinstance(cause, _LOST))

        return await self._again(once, may_repeat)

    async def _once(self, sql: str, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """One statement in its own transaction; a lost connection is no trouble for one that only reads."""

        async def once(until: float) -> Result:
            async with self.connection(until=until) as connection:
                return await work(connection)

        return await self._again(once, lambda cause, _: isinstance(cause, _LOST) and only_reads(sql))

    async def _again(
        self, once: Callable[[float], Awaitable[Result]], may_repeat: Callable[[BaseException | None, int], bool]
    ) -> Result:
        now = asyncio.get_running_loop().time
        deadline = now() + self._acquire_seconds
        tried = 0
        while True:
            try:
                return await once(deadline)
            except TransientError as error:
                tried += 1
                refused = isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError)
                pause = min(0.05 * 2**tried, _LONGEST_PAUSE_SECONDS) * (0.5 + random.random())  # noqa: S311 - jitter
                if not (refused or may_repeat(error.__cause__, tried)) or now() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def fetch(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        """All rows of one statement in its own transaction."""
        return await self._once(sql, lambda connection: connection.fetch(sql, *args))

    async def fetchrow(self, sql: str, *args: Any) -> asyncpg.Record | None:
        """The first row, or None."""
        return await self._once(sql, lambda connection: connection.fetchrow(sql, *args))

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first column of the first row, or None."""
        return await self._once(sql, lambda connection: connection.fetchval(sql, *args))

    async def execute(self, sql: str, *args: Any) -> str:
        """The command tag of one statement."""
        return await self._once(sql, lambda connection: connection.execute(sql, *args))

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """One statement for many rows, in one transaction."""
        async with self.connection() as connection:
            await connection.executemany(sql, rows)
