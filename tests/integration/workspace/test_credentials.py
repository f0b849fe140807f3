"""Database logins that Postgres itself lets in and shuts out."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.integration.workspace.conftest import SETTINGS, sdk
from tests.support.workspace import WorkspaceDouble

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

ROLE = "odd \"role's; name"


@dataclass(frozen=True)
class Lakebase:
    """A double in front of a real server, and how a role logs in there."""

    double: WorkspaceDouble
    client: WorkspaceClient
    database: TestDatabase

    async def password_is(self, token: str) -> bool:
        """Whether this token opens the role's verifier in the server; the test server itself lets everybody in."""
        stored = await self.database.owner.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", ROLE)
        _, cost, keys = str(stored).split("$")
        iterations, salt = cost.split(":")
        salted = hashlib.pbkdf2_hmac("sha256", token.encode(), base64.b64decode(salt), int(iterations))
        return base64.b64decode(keys.split(":")[1]) == hmac.digest(salted, b"Server Key", "sha256")


@pytest.fixture
async def lakebase(database: TestDatabase, tmp_path: Path) -> AsyncIterator[Lakebase]:
    quoted = '"' + ROLE.replace('"', '""') + '"'
    await database.owner.execute(f"CREATE ROLE {quoted} LOGIN")
    settings = {
        "principals": {ROLE: "secret"},
        "database_admin_url": database.url(),
        "database_token_seconds": 600,
        "warm_up_delay_seconds": 3600,
    }
    double = WorkspaceDouble(tmp_path, **{**SETTINGS, **settings})
    client = await asyncio.to_thread(sdk, double, ROLE, "secret")
    yield Lakebase(double, client, database)
    double.stop()
    await database.owner.execute(f"DROP ROLE {quoted}")


async def test_a_provisioned_credential_is_the_roles_password_until_its_end(lakebase: Lakebase) -> None:
    made = await asyncio.to_thread(lakebase.client.database.generate_database_credential, instance_names=["main"])
    assert made.token is not None and made.expiration_time is not None
    assert await lakebase.password_is(made.token)
    until_when = await lakebase.database.owner.fetchval("SELECT rolvaliduntil FROM pg_authid WHERE rolname = $1", ROLE)
    assert until_when == datetime.fromisoformat(made.expiration_time)
    instance = await asyncio.to_thread(lakebase.client.database.get_database_instance, "main")
    assert instance.read_write_dns == "127.0.0.1"


async def test_everybody_gets_the_same_token_while_half_its_life_remains(lakebase: Lakebase) -> None:
    def ask() -> str:
        return str(lakebase.client.database.generate_database_credential(instance_names=["main"]).token)

    tokens = await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(5)))
    assert len(set(tokens)) == 1


async def test_an_autoscaling_credential_lives_as_long_as_asked_and_is_then_renewed(lakebase: Lakebase) -> None:
    def ask() -> str:
        answer = lakebase.client.api_client.do(
            "POST", "/api/2.0/postgres/credentials", body={"endpoint": "projects/p/branches/b/endpoints/e", "ttl": "2s"}
        )
        return str(answer["token"])

    first = await asyncio.to_thread(ask)
    assert await lakebase.password_is(first)
    second = await until(lambda: token if (token := ask()) != first else None)
    assert second is not None
    assert await lakebase.password_is(second) and not await lakebase.password_is(first)


async def test_a_role_that_does_not_exist_is_said(database: TestDatabase, tmp_path: Path) -> None:
    from databricks.sdk.errors import NotFound

    settings = {"database_admin_url": database.url(), "warm_up_delay_seconds": 3600}
    double = WorkspaceDouble(tmp_path, **{**SETTINGS, **settings})
    try:
        client = await asyncio.to_thread(sdk, double)
        with pytest.raises(NotFound, match="no database role"):
            await asyncio.to_thread(client.database.generate_database_credential, instance_names=["main"])
    finally:
        double.stop()


async def test_a_database_that_is_down_is_a_503(tmp_path: Path) -> None:
    url = "postgresql://postgres@127.0.0.1:1/postgres"
    double = WorkspaceDouble(tmp_path, **{**SETTINGS, "database_admin_url": url, "warm_up_delay_seconds": 3600})
    try:
        answer = double.http.post("/api/2.0/database/credentials", json={"instance_names": ["main"]})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    finally:
        double.stop()
