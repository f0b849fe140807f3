"""A dispatcher of the benches: the service's own runtime, listener and loops before a runner that only notes the time.

`python -m bench.dispatcher`, with the environment of a service: one line with the time and the task of each call of the
runner, on standard error.
"""

from __future__ import annotations

import sys
import time

from services.dispatcher.loops import CancelLoop, ClaimLoop, LearnLoop, Submitter, TakeOverLoop
from services.dispatcher.settings import DispatcherSettings
from services.dispatcher.storage import DispatcherStorage
from services.dispatcher.storage.learning import LearningStorage
from shared.contract.channels import Channel
from shared.runtime.process import Process, Service, run
from shared.vendors.jobs import Jobs


class TimedJobs(Jobs):
    """Starts nothing and says when it was asked to."""

    def __init__(self) -> None:
        # No workspace behind it: whatever else is asked fails loudly.
        self._runs = time.time_ns()

    async def run_now(self, target: str, token: str, parameters: dict[str, str]) -> int:  # noqa: ARG002 - the runner's own words
        """A new run's id."""
        print(time.time(), parameters["task_id"], file=sys.stderr, flush=True)
        self._runs += 1
        return self._runs


async def compose(process: Process, settings: DispatcherSettings) -> Service:
    """As the service wires it, without a workspace."""
    storage = DispatcherStorage(process.database, process.replica)
    submitter = Submitter(storage, TimedJobs(), process.notes, settings)
    learn = LearnLoop(LearningStorage(process.database), process.notes, settings)
    claim = ClaimLoop(storage, learn, submitter, process.notes, settings)
    cancel = CancelLoop(storage, TimedJobs(), settings)
    return Service(
        loops=(claim, TakeOverLoop(storage, submitter, settings), learn, cancel),
        hears={Channel.TASK_READY: claim.hear},
        wakes={Channel.TASK_READY: (claim,), Channel.CONFIG_CHANGED: (claim,), Channel.CANCEL_REQUESTED: (cancel,)},
        drain=submitter.drain,
    )


if __name__ == "__main__":
    run("dispatcher", DispatcherSettings, compose)
