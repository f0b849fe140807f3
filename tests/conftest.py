"""Fixtures that every tier shares: a real Postgres, and a migrated database of its own for each test."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from typing_extensions import override
from xdist.scheduler import LoadFileScheduling

from shared.contract.ownership import role_of
from shared.db.connecting import connect
from shared.db.pool import Database
from tests.support.mlflow_server import MlflowServer
from tests.support.postgres import PostgresServer, memory_folder
from tests.support.workspace import WorkspaceDouble

_numbers = itertools.count(1)


TOGETHER = ("tests/acceptance/queue/",)
"""Folders whose files share what takes half a minute to start, and therefore a worker."""


class Scheduling(LoadFileScheduling):
    """A file stays with one worker, and so does a folder of those that share."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


OLDEST, NEWEST = 16, 18
ON_BOTH = ("tests/contract/", "tests/races/test_")
FOUND_ONCE = "test_a_broken_statement_is_found"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What the schema and the races promise must hold on both ends of what Lakebase runs; the rest runs on the newest.

    A broken statement needs to be found but once. LOCKKEEPER_TEST_POSTGRES names versions for everything.
    """
    if "postgres" not in metafunc.fixturenames:
        return
    given = os.environ.get("LOCKKEEPER_TEST_POSTGRES")
    if given is not None:
        versions = [int(each) for each in given.split(",")]
    else:
        is_on_both = metafunc.definition.nodeid.startswith(ON_BOTH) and metafunc.definition.name != FOUND_ONCE
        versions = [OLDEST, NEWEST] if is_on_both else [NEWEST]
    metafunc.parametrize("postgres", versions, ids=lambda version: f"pg{version}", indirect=True, scope="session")


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[int, PostgresServer]]:
    """The servers of this session by version; files that change between versions find theirs still running."""
    made: dict[int, PostgresServer] = {}
    yield made
    for server in made.values():
        server.destroy()


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest, servers: dict[int, PostgresServer]) -> PostgresServer:
    """A server of this session with the migrated template in it."""
    version: int = request.param
    if version not in servers:
        servers[version] = PostgresServer.create(version, folder=memory_folder(), max_wal_size="256MB")
        asyncio.run(servers[version].make_template())
    return servers[version]


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


@pytest.fixture(scope="session")
def shared_workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkspaceDouble]:
    """One workspace double for the session; its runs never start by themselves."""
    double = WorkspaceDouble(tmp_path_factory.mktemp("workspace"))
    yield double
    double.stop()


@pytest.fixture
def workspace(shared_workspace: WorkspaceDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkspaceDouble]:
    """The session's workspace without faults, and an environment in which the SDK finds it."""
    for name, value in shared_workspace.environment().items():
        monkeypatch.setenv(name, value)
    shared_workspace.mend()
    yield shared_workspace
    shared_workspace.mend()


@pytest.fixture(scope="session")
def tracking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A real MLflow tracking server for the session; it needs ten seconds to start."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    yield server
    server.stop()
