"""One way to log in, for pools, listeners and scripts: verified TLS, a password that may rotate, a known age.

A login that the server refuses drops the cached token and asks once more, because a token may end early.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import ssl
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, urlsplit

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from shared.contract.errors import MisconfiguredError
from shared.db.credentials import RotatingPassword

Password = str | Callable[[], Awaitable[str]]
Connection = asyncpg.Connection | PoolConnectionProxy

CONNECTION_SECONDS = 43_200.0
"""Twice a day; the platform may cut whatever is older than three days."""
_READ_ONLY_SECONDS = 1.0


class Session(asyncpg.Connection):
    """A connection that knows when it is to be replaced."""

    __slots__ = ("opened_at", "retire_at")

    opened_at: float
    retire_at: float

    @property
    def is_stale(self) -> bool:
        """Whether to log in anew: it is old enough, or its server turned read-only and may be no primary any more."""
        now = asyncio.get_running_loop().time()
        return now >= self.retire_at or (self.is_read_only and now >= self.opened_at + _READ_ONLY_SECONDS)

    @property
    def is_read_only(self) -> bool:
        """Whether the server said, at login or since, that it takes no writes."""
        said = self.get_settings()
        return "on" in (getattr(said, "in_hot_standby", ""), getattr(said, "default_transaction_read_only", ""))


class Login:
    """Opens sessions at one address. They retire at half to three quarters of `life_seconds`, not all together."""

    def __init__(
        self, url: str, password: Password | None = None, *, name: str, life_seconds: float = CONNECTION_SECONDS,
        timeout: float = 10, statement_seconds: float | None = 30, settings: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.url = url
        self.life_seconds = life_seconds
        self._password = password
        self._timeout = timeout
        self._statement_seconds = statement_seconds
        self._settings = {"application_name": name, **(settings or {})}

    async def open(self, *_: object, **__: object) -> Session:
        """A fresh session; asyncpg's pool calls it with arguments of its own, which are ours already."""
        password = await self._ask_password()
        try:
            return await self._open(password)
        except asyncpg.InvalidAuthorizationSpecificationError:
            if not callable(self._password):
                raise
        if isinstance(self._password, RotatingPassword):
            self._password.forget(password)
        return await self._open(await self._ask_password())

    async def _ask_password(self) -> str | None:
        return await self._password() if callable(self._password) else self._password

    async def _open(self, password: str | None) -> Session:
        session: Session = await asyncpg.connect(
            self.url, password=password, timeout=self._timeout, command_timeout=self._statement_seconds,
            connection_class=Session, ssl=tls_for(self.url), server_settings=self._settings,
        )  # fmt: skip
        session.opened_at = asyncio.get_running_loop().time()
        session.retire_at = session.opened_at + self.life_seconds * random.uniform(0.5, 0.75)  # noqa: S311 - jitter
        return session


async def connect(
    url: str, password: Password | None = None, *, name: str, timeout: float = 10, statement_seconds: float | None = 30
) -> asyncpg.Connection:
    """One connection of its own, outside any pool: for a script. Without seconds, no statement is cut."""
    session = await Login(url, password, name=name, timeout=timeout, statement_seconds=statement_seconds).open()
    await set_codecs(session)
    return session


async def set_codecs(connection: Connection) -> None:
    """Jsonb travels as Python objects on this connection."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary",
        encoder=lambda value: b"\x01" + orjson.dumps(value, default=str),
        decoder=lambda data: orjson.loads(data[1:]),
    )  # fmt: skip


def tls_for(url: str) -> ssl.SSLContext | None:
    """How to protect a connection: as `sslmode` says, else verified in full unless the server is on this machine.

    `sslrootcert` (or PGSSLROOTCERT) names the authorities to trust; the system's without it.
    """
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    mode = query.get("sslmode") or os.environ.get("PGSSLMODE")
    hosts = query["host"].split(",") if "host" in query else _hosts(parts.netloc)
    if mode not in (None, "verify-full") or (mode is None and all(map(_is_local, hosts))):
        return None  # the driver does what `sslmode` says, and on this machine what the server offers
    return _verified(query.get("sslrootcert") or os.environ.get("PGSSLROOTCERT"))


def _verified(authorities: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if authorities in (None, "", "system") else authorities)
    except OSError as error:
        raise MisconfiguredError(f"sslrootcert {authorities} cannot be read: {error.strerror or error}") from error


def _hosts(netloc: str) -> list[str]:
    return [urlsplit(f"//{each}").hostname or "" for each in netloc.rpartition("@")[2].split(",")]


def _is_local(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
