"""One double with real warm processes for this folder, and the unchanged SDK talking to it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.testing.wait import until
from tests.support.workspace import CLIENT, WorkspaceDouble

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import Run

AGENTS = Path(__file__).parent / "agents"
ENDED = {"TERMINATED", "INTERNAL_ERROR", "SKIPPED"}
SETTINGS: dict[str, object] = {
    "code_dir": AGENTS,
    "processes": 2,
    "warm_up_delay_seconds": 0,
    "run_entry_points": {"story": "story_agent:main"},
    "agent_environment": {"GREETING": "hello"},
    "cancel_grace_seconds": 0.5,
}


def sdk(double: WorkspaceDouble, client_id: str = CLIENT[0], client_secret: str = CLIENT[1]) -> WorkspaceClient:
    """The unchanged SDK, logged in."""
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.config import Config

    config = Config(
        host=double.url, client_id=client_id, client_secret=client_secret, retry_timeout_seconds=5,
        http_timeout_seconds=10, config_file="/dev/null",
    )  # fmt: skip
    return WorkspaceClient(config=config)


class Story:
    """Runs of the story agent, started and watched through the SDK."""

    def __init__(self, client: WorkspaceClient, double: WorkspaceDouble) -> None:
        self.client = client
        self.double = double

    def job(self, *, max_concurrent_runs: int = 100, queued: bool = False, name: str = "story") -> int:
        """A saved job."""
        from databricks.sdk.service import jobs

        task = jobs.Task(
            task_key="main",
            python_wheel_task=jobs.PythonWheelTask(package_name="story", entry_point="story"),
        )
        made = self.client.jobs.create(
            name=name, tasks=[task], max_concurrent_runs=max_concurrent_runs,
            queue=jobs.QueueSettings(enabled=queued), tags={"team": "tests"},
        )  # fmt: skip
        assert made.job_id is not None
        return made.job_id

    async def start(self, job_id: int, token: str | None = None, **parameters: str) -> int:
        """Start a run; its id."""
        run = await asyncio.to_thread(
            self.client.jobs.run_now, job_id, job_parameters=parameters, idempotency_token=token
        )
        return int(run.run_id)

    def run(self, run_id: int) -> Run:
        """The run as the SDK reads it."""
        return self.client.jobs.get_run(run_id)

    def state(self, run_id: int) -> tuple[str | None, str | None, str | None]:
        """Life cycle, result and termination code."""
        run = self.run(run_id)
        assert run.state is not None and run.status is not None
        details = run.status.termination_details
        return (
            run.state.life_cycle_state.value if run.state.life_cycle_state else None,
            run.state.result_state.value if run.state.result_state else None,
            details.code.value if details and details.code else None,
        )

    async def end(self, run_id: int, seconds: float = 20) -> tuple[str | None, str | None, str | None]:
        """The state of a run once it has ended."""

        def ended() -> tuple[str | None, str | None, str | None] | None:
            state = self.state(run_id)
            return state if state[0] in ENDED else None

        state = await until(ended, seconds=seconds)
        assert state is not None
        return state

    async def becomes(self, run_id: int, life_cycle: str) -> None:
        """Wait until a run is in a state."""
        await until(lambda: self.state(run_id)[0] == life_cycle)

    def task_run(self, run_id: int) -> int:
        """The id of the run of the task inside."""
        tasks = self.run(run_id).tasks
        assert tasks and tasks[0].run_id is not None
        return tasks[0].run_id


@pytest.fixture(scope="session")
def standing_double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkspaceDouble]:
    """The double of this folder, two warm processes, stays up for all its tests."""
    double = WorkspaceDouble(tmp_path_factory.mktemp("double"), **SETTINGS)
    yield double
    double.stop()


@pytest.fixture
def double(standing_double: WorkspaceDouble) -> Iterator[WorkspaceDouble]:
    """The same without fault rules."""
    standing_double.mend()
    yield standing_double
    standing_double.mend()


@pytest.fixture(scope="session")
def standing_client(standing_double: WorkspaceDouble) -> WorkspaceClient:
    return sdk(standing_double)


@pytest.fixture
def client(double: WorkspaceDouble, standing_client: WorkspaceClient) -> WorkspaceClient:
    """The SDK against a double without fault rules."""
    return standing_client


@pytest.fixture
async def story(client: WorkspaceClient, double: WorkspaceDouble) -> AsyncIterator[Story]:
    """Runs against the standing double; what a test leaves running is cancelled."""
    teller = Story(client, double)
    yield teller
    for run in client.jobs.list_runs(active_only=True):
        assert run.run_id is not None
        client.jobs.cancel_run(run.run_id)
    await until(lambda: not double.http.get("/health").json()["runs"])


@pytest.fixture(autouse=True)
def _quiet_sockets() -> Iterator[None]:
    # The SDK never closes its sessions; their sockets end with the process.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
