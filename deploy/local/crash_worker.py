"""The underwriting worker with one difference: it kills itself at a named point, for exercises and tests.

`LOCKKEEPER_LOCAL_CRASH_AT` is `ACTIVITY:before`, when the activity has been given out and nothing of it is done, or
`ACTIVITY:after`, when its effect is committed and its completion not reported; `:RUN_ID` limits it to one run.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import structlog
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from typing_extensions import override

from services.underwriting_worker.app import compose
from services.underwriting_worker.settings import WorkerSettings
from shared.runtime.process import Process, Service, run

CRASH_AT = "LOCKKEEPER_LOCAL_CRASH_AT"

log = structlog.get_logger()


class CrashAt(Interceptor):
    """Ends this process without a word at one point."""

    def __init__(self, point: str) -> None:
        self.activity, self.when, *run_id = point.split(":")
        self.run_id = run_id[0] if run_id else None

    @override
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _CrashingActivities(next, self)

    def strike(self, when: str, step: Any) -> None:
        """Crash when this is the point."""
        if when != self.when or activity.info().activity_type != self.activity:
            return
        if self.run_id in (None, str(step.run_id)):
            log.warning("crash_on_purpose", at=f"{self.activity}:{when}", run_id=str(step.run_id))
            os.kill(os.getpid(), signal.SIGKILL)


class _CrashingActivities(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, crash: CrashAt) -> None:
        super().__init__(following)
        self._crash = crash

    @override
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self._crash.strike("before", input.args[0])
        done = await super().execute_activity(input)
        self._crash.strike("after", input.args[0])
        return done


async def _compose(point: str | None, process: Process, settings: WorkerSettings) -> Service:
    return await compose(process, settings, interceptors=() if point is None else (CrashAt(point),))


def main() -> None:
    """Run the worker until it is told to stop, or reaches its point."""
    run("underwriting_worker", WorkerSettings, partial(_compose, os.environ.get(CRASH_AT)))


if __name__ == "__main__":
    main()
