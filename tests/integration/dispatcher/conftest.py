from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from services.dispatcher.loops import CancelLoop, ClaimLoop, LearnLoop, Submitter, TakeOverLoop
from services.dispatcher.settings import DispatcherSettings
from services.dispatcher.storage import DispatcherStorage
from services.dispatcher.storage.learning import LearningStorage
from shared.db.notes import Notes
from shared.testing.wait import until
from shared.vendors.jobs import Jobs
from shared.vendors.workspace import Workspace
from tests.conftest import TestDatabase
from tests.support.workspace import WorkspaceDouble


@dataclass
class Dispatcher:
    """A dispatcher's parts, turned by hand."""

    storage: DispatcherStorage
    submitter: Submitter
    claim: ClaimLoop
    take_over: TakeOverLoop
    cancel: CancelLoop

    async def settle_down(self) -> None:
        """Wait until no call to the runner is open."""
        await until(lambda: self.submitter.held == 0, seconds=30)


@pytest.fixture
async def make_dispatcher(
    database: TestDatabase, workspace: WorkspaceDouble
) -> AsyncIterator[Callable[..., Dispatcher]]:
    """Dispatchers by name, all over the real SDK against the workspace double."""
    pool = await database.open("dispatcher")
    notes = Notes(pool)
    vendors: list[Workspace] = []

    def make(name: str = "a", **settings: float) -> Dispatcher:
        own = DispatcherSettings(
            **{"poll_seconds": 0.05, "take_over_poll_seconds": 0.1, "cancel_poll_seconds": 0.05, **settings}
        )
        vendor = Workspace(threads=12, retry_seconds=own.retry_seconds, http_seconds=own.http_seconds)
        vendors.append(vendor)
        jobs = Jobs(vendor)
        storage = DispatcherStorage(pool, name)
        submitter = Submitter(storage, jobs, notes, own)
        return Dispatcher(
            storage,
            submitter,
            ClaimLoop(storage, LearnLoop(LearningStorage(pool), notes, own), submitter, notes, own),
            TakeOverLoop(storage, submitter, own),
            CancelLoop(storage, jobs, own),
        )

    yield make
    for vendor in vendors:
        vendor.close()
    await pool.close()
