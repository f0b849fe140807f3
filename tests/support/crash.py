"""Workers as processes that can be killed at a named point, forked from a process that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess

from deploy.local.crash_worker import CRASH_AT, main
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.crash"])


def run_worker(environment: Mapping[str, str]) -> None:
    """The child: the service as it is, with the crash point of its environment."""
    os.environ.update(environment)
    main()


def start_worker(environment: Mapping[str, str], crash_at: str | None = None) -> ForkServerProcess:
    """A worker process; with `crash_at` it kills itself there."""
    given = {**environment} | ({} if crash_at is None else {CRASH_AT: crash_at})
    worker = _context.Process(target=run_worker, args=(given,), daemon=True)
    worker.start()
    return worker


def worker_environment(desk: Underwriting, temporal: TemporalServer) -> dict[str, str]:
    """What a worker process of this test is told."""
    return {
        "LOCKKEEPER_DATABASE_URL": desk.database.url("underwriting_worker"),
        "LOCKKEEPER_MODEL_URL": desk.model.url,
        "LOCKKEEPER_MODEL_KEY": "test",
        "LOCKKEEPER_LOG_LEVEL": "error",
        "LOCKKEEPER_UNDERWRITING_WORKER_TASK_QUEUE": desk.queue,
        "LOCKKEEPER_UNDERWRITING_WORKER_STICKY_SECONDS": "1",
        "LOCKKEEPER_UNDERWRITING_WORKER_SEARCH_ATTRIBUTES": "false",
        "TEMPORAL_ADDRESS": temporal.address,
        "MLFLOW_TRACKING_URI": "",
    }
