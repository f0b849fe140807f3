"""Composition root of the dispatcher."""

from __future__ import annotations

from services.dispatcher.loops import CancelLoop, ClaimLoop, LearnLoop, Submitter, TakeOverLoop
from services.dispatcher.settings import DispatcherSettings
from services.dispatcher.storage import DispatcherStorage
from services.dispatcher.storage.learning import LearningStorage
from shared.contract.channels import Channel
from shared.runtime.process import Process, Service, run
from shared.vendors.jobs import Jobs
from shared.vendors.workspace import Workspace


async def compose(process: Process, settings: DispatcherSettings) -> Service:
    """Wire the loops to the database and the Jobs API."""
    workspace = Workspace(
        threads=settings.submit_threads + 4, retry_seconds=settings.retry_seconds, http_seconds=settings.http_seconds
    )
    jobs = Jobs(workspace)
    storage = DispatcherStorage(process.database, process.replica)
    submitter = Submitter(storage, jobs, process.notes, settings)
    learn = LearnLoop(LearningStorage(process.database), process.notes, settings)
    claim = ClaimLoop(storage, learn, submitter, process.notes, settings)
    cancel = CancelLoop(storage, jobs, settings)

    async def drain() -> None:
        await submitter.drain()
        workspace.close()

    return Service(
        loops=(claim, TakeOverLoop(storage, submitter, settings), learn, cancel),
        hears={Channel.TASK_READY: claim.hear},
        wakes={Channel.TASK_READY: (claim,), Channel.CONFIG_CHANGED: (claim,), Channel.CANCEL_REQUESTED: (cancel,)},
        drain=drain,
    )


def main() -> None:
    """Run the dispatcher until it is told to stop."""
    run("dispatcher", DispatcherSettings, compose)
