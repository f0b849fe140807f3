"""Doubles Lakebase logins: ``/api/2.0/database`` (provisioned) and ``/api/2.0/postgres`` (autoscaling).

A credential is a real Postgres password of the role named like the caller's client id, with an end of
validity that Postgres itself enforces at login. A role has one password, so everybody who asks gets the same
token while more than half of its life remains; the next token ends the earlier one early, which a client must
bear anyway (it asks again when a login is refused).
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from deploy.local.workspace.operation import (
    ApiError,
    Operation,
    invalid_parameter,
    json_body,
    json_response,
    not_found,
)
from deploy.local.workspace.settings import WorkspaceSettings
from deploy.local.workspace.store import Store

_SHORTEST_SECONDS = 1.0
_LONGEST_SECONDS = 3600.0
_CONNECT_SECONDS = 5.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")


@dataclass(frozen=True, slots=True)
class Login:
    """A password and its life, in seconds since 1970."""

    token: str
    issued_at: float
    ends_at: float

    def serves(self, now: float) -> bool:
        """More than half of its life remains."""
        return now < (self.issued_at + self.ends_at) / 2

    @property
    def end_text(self) -> str:
        """The end as the API writes it."""
        return datetime.fromtimestamp(self.ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class CredentialsRoom:
    """Database logins for service principals."""

    def __init__(self, *, store: Store, settings: WorkspaceSettings) -> None:
        self._store = store
        self._admin_url = settings.database_admin_url.get_secret_value()
        self._seconds = float(settings.database_token_seconds)
        self._dns = settings.database_dns
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Logins this process has set itself: one remembered from an earlier life is set again, as the
        # database may have been made anew since.
        self._confirmed: set[str] = set()

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        instance = "/api/2.0/database/instances/{name}"
        return [
            Operation("database.credentials", "POST", "/api/2.0/database/credentials", self.provisioned),
            Operation("database.instance", "GET", instance, self.instance),
            Operation("postgres.credentials", "POST", "/api/2.0/postgres/credentials", self.autoscaling),
        ]

    async def provisioned(self, request: Request) -> Response:
        """A token for the instances of the older kind."""
        body = await json_body(request)
        if not body.get("instance_names"):
            raise invalid_parameter("instance_names is required")
        login = await self._login(request.state.client_id, self._seconds)
        return json_response({"token": login.token, "expiration_time": login.end_text})

    async def autoscaling(self, request: Request) -> Response:
        """A token for an endpoint of the newer kind, for a life of the caller's choice."""
        body = await json_body(request)
        if not body.get("endpoint"):
            raise invalid_parameter("endpoint is required")
        login = await self._login(
            request.state.client_id, self._asked_seconds(body.get("ttl"), body.get("expire_time"))
        )
        return json_response({"token": login.token, "expire_time": login.end_text})

    async def instance(self, request: Request) -> Response:
        """Where the database is."""
        name = request.path_params["name"]
        return json_response(
            {
                "name": name,
                "state": "AVAILABLE",
                "read_write_dns": self._dns,
                "pg_version": "PG_VERSION_18",
                "capacity": "CU_1",
            }
        )

    def _asked_seconds(self, ttl: object, expire_time: object) -> float:
        if ttl is not None:
            found = _DURATION.fullmatch(str(ttl))
            if found is None:
                raise invalid_parameter(f"ttl is not a duration: {ttl!r}")
            seconds = float(found[1])
        elif expire_time is not None:
            try:
                seconds = datetime.fromisoformat(str(expire_time)).timestamp() - time.time()
            except ValueError as error:
                raise invalid_parameter(f"expire_time is not a time: {expire_time!r}") from error
        else:
            seconds = self._seconds
        return min(max(seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS)

    async def _login(self, principal: str, seconds: float) -> Login:
        async with self._one_at_a_time[principal]:
            now = time.time()
            row = self._store.row("SELECT token, issued_at, ends_at FROM logins WHERE principal = ?", principal)
            login = Login(*row) if row is not None else None
            # A token with a longer life than asked for would outlive what the caller wants to test or trust.
            if login is not None and login.serves(now) and login.ends_at - login.issued_at <= seconds + 1:
                if principal not in self._confirmed:
                    await self._set_password(principal, login)
                return login
            # Whole seconds: the API writes no fractions, and Postgres must not end the login before that.
            login = Login(secrets.token_urlsafe(48), now, float(int(now + seconds) + 1))
            await self._set_password(principal, login)
            self._store.execute(
                "INSERT OR REPLACE INTO logins VALUES (?, ?, ?, ?)",
                principal, login.token, login.issued_at, login.ends_at,
            )  # fmt: skip
            return login

    async def _set_password(self, role: str, login: Login) -> None:
        import asyncpg

        if not self._admin_url:
            raise ApiError(501, "NOT_IMPLEMENTED", "the double knows no database: set DATABASE_ADMIN_URL")
        try:
            connection = await asyncpg.connect(self._admin_url, timeout=_CONNECT_SECONDS)
        except (OSError, TimeoutError, asyncpg.PostgresError) as error:
            raise ApiError(
                503, "TEMPORARILY_UNAVAILABLE", f"the database does not answer: {error}", headers={"Retry-After": "1"}
            ) from error
        try:
            statement = await connection.fetchval(
                "SELECT format('ALTER ROLE %I PASSWORD %L VALID UNTIL %L', $1::text, $2::text, $3::text)",
                role, login.token, login.end_text,
            )  # fmt: skip
            await connection.execute(statement)
            self._confirmed.add(role)
        except asyncpg.UndefinedObjectError as error:
            raise not_found(f"no database role is named {role!r}") from error
        finally:
            await connection.close()
