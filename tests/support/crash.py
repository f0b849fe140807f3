"""Workers as processes that can be killed at a named point, forked from a process that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess

from deploy.local.crash_worker import CRASH_AT, main

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
