"""Fixtures that every tier shares: a real Postgres, and a migrated database of its own for each test."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import asyncpg
import pytest

from shared.contract.ownership import role_of
from shared.db.pool import Database, connect
from tests.support.postgres import PostgresServer

_numbers = itertools.count(1)


def _versions() -> list[int]:
    """Both ends of what Lakebase runs, unless LOCKKEEPER_TEST_POSTGRES names one."""
    return [int(each) for each in os.environ.get("LOCKKEEPER_TEST_POSTGRES", "18").split(",")]


@pytest.fixture(scope="session", params=_versions(), ids=lambda version: f"pg{version}")
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of this session with the migrated template in it."""
    server = PostgresServer.create(request.param)
    try:
        asyncio.run(server.make_template())
        yield server
    finally:
        server.destroy()


@dataclass(frozen=True, slots=True)
class TestDatabase:
    """A database of one test. `owner` is a superuser's connection for staging and looking."""

    __test__ = False

    server: PostgresServer
    name: str
    owner: asyncpg.Connection

    def url(self, service: str | None = None) -> str:
        """The address of this database for a service's role, or for the superuser."""
        return self.server.url(database=self.name) if service is None else self.server.url(role_of(service), self.name)

    async def open(self, service: str, *, size: int = 5) -> Database:
        """A pool logged in as the service."""
        pool = Database(self.url(service), name=f"test-{service}", size=size)
        await pool.open()
        return pool


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[TestDatabase]:
    """A fresh, migrated database."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    await postgres.clone(name)
    owner = await connect(postgres.url(database=name), name="test-owner")
    try:
        yield TestDatabase(postgres, name, owner)
    finally:
        await owner.close()
        await postgres.drop(name)
