"""The double and the recorder of this folder, and a world for one attempt around them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from services.document_agent.pages.sandbox import pool
from tests.conftest import TestDatabase
from tests.support.agents import AgentWorld
from tests.support.callbacks import CallbackRecorder
from tests.support.workspace import WorkspaceDouble


@pytest.fixture(scope="session")
def standing_double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkspaceDouble]:
    """The double for files and the model; its warm processes are not needed and not started."""
    double = WorkspaceDouble(tmp_path_factory.mktemp("agent-double"))
    yield double
    double.stop()


@pytest.fixture
def recorder() -> Iterator[CallbackRecorder]:
    recorder = CallbackRecorder()
    yield recorder
    recorder.stop()


@pytest.fixture
def world(
    database: TestDatabase,
    standing_double: WorkspaceDouble,
    recorder: CallbackRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[AgentWorld]:
    """An agent's process around this test."""
    standing_double.mend()
    world = AgentWorld(database, standing_double, recorder, monkeypatch)
    world.begin()
    yield world
    standing_double.mend()


@pytest.fixture(scope="session", autouse=True)
def _no_children_left() -> Iterator[None]:
    yield
    pool.close()


@pytest.fixture(autouse=True)
def _quiet_sockets() -> Iterator[None]:
    # The Databricks SDK never closes its sessions and mlflow warns about its own code; neither is ours to mend.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
