from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from shared.db.connecting import connect
from tests.conftest import TestDatabase
from tests.support.postgres import PostgresServer

NAME = "test_migrated"


@pytest.fixture(scope="session")
def migrated_name(postgres: PostgresServer) -> Iterator[str]:
    """One database for all tests that only look, or whose writes are refused."""
    asyncio.run(postgres.clone(NAME))
    yield NAME
    asyncio.run(postgres.drop(NAME))


@pytest.fixture
async def migrated(postgres: PostgresServer, migrated_name: str) -> AsyncIterator[TestDatabase]:
    """The shared database, with a connection of this test's own."""
    owner = await connect(postgres.url(database=migrated_name), name="test-owner")
    yield TestDatabase(postgres, migrated_name, owner)
    await owner.close()
