"""Composition root of the sweeper."""

from __future__ import annotations

from services.sweeper.loops import DatabaseGaugesLoop, ForgetLoop, GaugesLoop, RemoveLoop, SweepLoop
from services.sweeper.settings import SweeperSettings
from services.sweeper.storage import SweeperStorage
from shared.runtime.process import Process, Service, run
from shared.vendors.jobs import Jobs
from shared.vendors.workspace import Workspace


async def compose(process: Process, settings: SweeperSettings) -> Service:
    """Wire the loops to the database and the Jobs API."""
    workspace = Workspace(
        threads=settings.threads, retry_seconds=settings.retry_seconds, http_seconds=settings.http_seconds
    )
    storage = SweeperStorage(process.database, process.replica)

    async def drain() -> None:
        workspace.close()
        await storage.drop_duties()

    removal = () if settings.keep_days is None else (RemoveLoop(storage, settings, settings.keep_days),)
    return Service(
        loops=(
            SweepLoop(storage, Jobs(workspace), process.notes, settings),
            ForgetLoop(storage, settings),
            GaugesLoop(storage, settings),
            DatabaseGaugesLoop(storage, settings),
            *removal,
        ),
        drain=drain,
    )


def main() -> None:
    """Run the sweeper until it is told to stop."""
    run("sweeper", SweeperSettings, compose)
