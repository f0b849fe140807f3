"""The Jobs API: start a run once, ask how it is, cancel it.

A run has two shapes on the wire, the deprecated `state` and the newer `status`; both are read. What a
state means for an attempt is decided here once: waiting, running or ended, and how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shared.contract.errors import MissingError, RejectedError
from shared.vendors.workspace import Workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import Run


class RunPhase(StrEnum):
    """Whether a run still holds its attempt."""

    ALIVE = "alive"
    ENDED = "ended"
    UNKNOWN = "unknown"


class RunVerdict(StrEnum):
    """What the end of a run says about trying again."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NEVER_STARTED = "never_started"
    HOPELESS = "hopeless"


ALIVE_STATES = frozenset({"BLOCKED", "PENDING", "QUEUED", "RUNNING", "TERMINATING", "WAITING", "WAITING_FOR_RETRY"})
ENDED_STATES = frozenset({"TERMINATED", "SKIPPED", "INTERNAL_ERROR"})
NEVER_STARTED_CODES = frozenset(
    {
        "SKIPPED",
        "MAX_CONCURRENT_RUNS_EXCEEDED",
        "MAX_CONCURRENT_RUNS_REACHED",
        "MAXIMUM_CONCURRENT_RUNS_REACHED",
        "MAX_JOB_QUEUE_SIZE_EXCEEDED",
        "WORKSPACE_RUN_LIMIT_EXCEEDED",
        "CLUSTER_REQUEST_LIMIT_EXCEEDED",
    }
)
HOPELESS_CODES = frozenset(
    {
        "USER_CANCELED",
        "DISABLED",
        "EXCLUDED",
        "BUDGET_POLICY_LIMIT_EXCEEDED",
        "UNAUTHORIZED_ERROR",
        "INVALID_RUN_CONFIGURATION",
        "RESOURCE_NOT_FOUND",
        "LIBRARY_INSTALLATION_ERROR",
        "FEATURE_DISABLED",
    }
)


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as the runner sees it now. `code` is its most telling word, in upper case."""

    run_id: int
    phase: RunPhase
    code: str
    message: str
    task_run_id: int | None = None

    @property
    def verdict(self) -> RunVerdict:
        """What an ended run says about its attempt."""
        if self.code == "SUCCESS":
            return RunVerdict.SUCCEEDED
        if self.code in NEVER_STARTED_CODES:
            return RunVerdict.NEVER_STARTED
        if self.code in HOPELESS_CODES:
            return RunVerdict.HOPELESS
        return RunVerdict.FAILED


class Jobs:
    """Saved jobs and their runs. Every call raises the errors of `Workspace.call`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._ids: dict[str, int] = {}

    async def run_now(self, target: str, token: str, parameters: dict[str, str]) -> int:
        """Start the saved job `target` (id or unique name) and return its run's id.

        The token makes it once: the same token answers with the run that it started before, whoever
        asks and however often. RejectedError when there is no such job, or more than one of that name.
        """
        return await self._workspace.call(lambda client: self._run_now(client, target, token, parameters))

    async def state(self, run_id: int) -> RunState:
        """How the run is. MissingError when the runner does not know it (any more)."""
        return await self._workspace.call(lambda client: describe(client.jobs.get_run(run_id)))

    async def page(self, run_id: int) -> str | None:
        """The address of the run's page, for people. MissingError when the runner does not know it (any more)."""
        return await self._workspace.call(lambda client: client.jobs.get_run(run_id).run_page_url)

    async def cancel(self, run_id: int) -> None:
        """Ask for the run's end; a run that is over stays as it is."""
        await self._workspace.call(lambda client: client.jobs.cancel_run(run_id))

    async def error_output(self, task_run_id: int) -> str:
        """The error that the run's code left behind, for people; empty when there is none."""

        def read(client: WorkspaceClient) -> str:
            return (client.jobs.get_run_output(task_run_id).error or "")[:2000]

        try:
            return await self._workspace.call(read)
        except (MissingError, RejectedError):
            return ""

    def _run_now(self, client: WorkspaceClient, target: str, token: str, parameters: dict[str, str]) -> int:
        try:
            wait = client.jobs.run_now(self._job_id(client, target), idempotency_token=token, job_parameters=parameters)
        except Exception:
            # The name may belong to another job by now; the next call asks again.
            self._ids.pop(target, None)
            raise
        return int(wait.run_id)

    def _job_id(self, client: WorkspaceClient, target: str) -> int:
        if target.isdecimal():
            return int(target)
        if target not in self._ids:
            found = [job.job_id for job in client.jobs.list(name=target, limit=2) if job.job_id is not None]
            if len(found) != 1:
                what = "no saved job is" if not found else "more than one saved job is"
                raise RejectedError(f"{what} named {target}", reason="job_not_found")
            self._ids[target] = found[0]
        return self._ids[target]


def describe(run: Run) -> RunState:
    """The run's state from whichever of its two shapes is there; a value nobody knows is UNKNOWN."""
    old, new = run.state, run.status
    words = [
        getattr(each, "value", None) or (str(each) if each else "")
        for each in (
            new.state if new else None,
            old.life_cycle_state if old else None,
            old.result_state if old else None,
            new.termination_details.code if new and new.termination_details else None,
        )
    ]
    current, life_cycle, result, termination = words
    if life_cycle in ENDED_STATES or current == "TERMINATED":
        phase = RunPhase.ENDED
    elif life_cycle in ALIVE_STATES or current in ALIVE_STATES:
        phase = RunPhase.ALIVE
    else:
        phase = RunPhase.UNKNOWN
    details = new.termination_details.message if new and new.termination_details else None
    tasks = run.tasks or []
    return RunState(
        run_id=int(run.run_id or 0),
        phase=phase,
        # The termination code of a run that ran out of time says less than its result does.
        code=(
            "TIMEDOUT" if result == "TIMEDOUT" else termination or result or life_cycle or current or "NO_STATE"
        ).upper(),
        message=details or (old.state_message if old else None) or "",
        task_run_id=tasks[0].run_id if tasks else None,
    )
