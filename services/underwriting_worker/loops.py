"""When the worker polls Temporal: from the moment that it answers until the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from services.underwriting_worker import metrics
from services.underwriting_worker.settings import WorkerSettings
from shared.contract.errors import RejectedError, TransientError
from shared.vendors import temporal
from shared.vendors.temporal_metrics import SdkMetrics

log = structlog.get_logger()

GRACE = timedelta(seconds=4)
Build = Callable[[Client], Worker]


class WorkLoop:
    """Keeps one Temporal worker running; each round looks whether it still does.

    A cluster that is away at the start is waited for; the SDK itself reconnects later on.
    """

    name = "temporal_worker"

    def __init__(self, build: Build, settings: WorkerSettings, sdk: SdkMetrics) -> None:
        self.poll_seconds = 2.0
        self._build = build
        self._settings = settings
        self._sdk = sdk
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None

    async def run_once(self) -> bool:
        """Start the worker when none runs; raises what ended it."""
        self._sdk.drain()
        if self._task is None:
            await self._start()
        if self._task is not None and self._task.done():
            task, self._task, self._worker = self._task, None, None
            metrics.CONNECTED.set(0)
            try:
                task.result()
            except (RuntimeError, RPCError) as error:
                raise TransientError(f"the worker ended: {error}", reason="temporal_unavailable") from error
        return False

    async def drain(self) -> None:
        """Take no more work, let what runs end, leave the rest to another worker."""
        if self._worker is not None:
            with suppress(RuntimeError):
                await self._worker.shutdown()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        metrics.CONNECTED.set(0)

    async def _start(self) -> None:
        client = await temporal.connect(self._settings.keys(), runtime=self._sdk.runtime)
        if self._settings.search_attributes:
            try:
                await temporal.ensure_search_attributes(client)
            except RejectedError as error:
                log.warning("search_attributes_missing", error=error.message)
        self._worker = self._build(client)
        self._task = asyncio.create_task(self._worker.run(), name="temporal-worker")
        metrics.CONNECTED.set(1)
        log.info("polls_temporal", task_queue=self._settings.task_queue, namespace=client.namespace)
