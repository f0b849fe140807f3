"""Saved jobs and the ways to start a run, through the unchanged SDK."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.workspace.conftest import Story

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient


def test_jobs_are_made_found_changed_and_removed(story: Story, client: WorkspaceClient) -> None:
    from databricks.sdk.errors import ResourceDoesNotExist
    from databricks.sdk.service import jobs

    name = f"job-{uuid.uuid4()}"
    job_id = story.job(name=name)
    assert [job.job_id for job in client.jobs.list(name=name.upper())] == [job_id]
    client.jobs.update(job_id, new_settings=jobs.JobSettings(max_concurrent_runs=7))
    settings = client.jobs.get(job_id).settings
    assert settings is not None and (settings.name, settings.max_concurrent_runs) == (name, 7)
    assert settings.tasks is not None
    client.jobs.reset(job_id, jobs.JobSettings(name="other", tasks=settings.tasks))
    changed = client.jobs.get(job_id).settings
    assert changed is not None and changed.name == "other"
    client.jobs.delete(job_id)
    with pytest.raises(ResourceDoesNotExist):
        client.jobs.get(job_id)


def test_jobs_are_listed_in_pages(story: Story, client: WorkspaceClient) -> None:
    name = f"page-{uuid.uuid4()}"
    made = [story.job(name=name) for _ in range(5)]
    assert [job.job_id for job in client.jobs.list(name=name, limit=2)] == made[::-1]


async def test_a_run_executes_the_code_with_its_parameters_and_environment(story: Story) -> None:
    run_id = await story.start(story.job(), task_id="t-1", attempt_id="a-1")
    assert await story.end(run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")
    output = story.client.jobs.get_run_output(story.task_run(run_id))
    assert output.logs is not None
    assert "greeting=hello task=t-1 attempt=a-1" in output.logs
    run = story.run(run_id)
    assert run.run_type is not None and run.run_type.value == "JOB_RUN"
    assert {one.name: one.value for one in run.job_parameters or []} == {"task_id": "t-1", "attempt_id": "a-1"}
    assert run.end_time and run.start_time and run.end_time >= run.start_time


async def test_a_token_starts_one_run_also_at_once_and_after_its_end(story: Story) -> None:
    job_id, token = story.job(), str(uuid.uuid4())
    first = await asyncio.gather(*(story.start(job_id, token) for _ in range(8)))
    assert len(set(first)) == 1
    await story.end(first[0])
    assert await story.start(job_id, token) == first[0]
    assert [run.run_id for run in story.client.jobs.list_runs(job_id=job_id)] == [first[0]]


async def test_the_token_of_a_deleted_run_stays_reserved(story: Story) -> None:
    from databricks.sdk.errors import InvalidParameterValue

    job_id, token = story.job(), str(uuid.uuid4())
    run_id = await story.start(job_id, token)
    await story.end(run_id)
    story.client.jobs.delete_run(run_id)
    with pytest.raises(InvalidParameterValue, match="deleted"):
        await story.start(job_id, token)


def test_a_token_of_65_characters_and_large_parameters_are_refused(story: Story, client: WorkspaceClient) -> None:
    from databricks.sdk.errors import InvalidParameterValue

    job_id = story.job()
    with pytest.raises(InvalidParameterValue, match="64"):
        client.jobs.run_now(job_id, idempotency_token="x" * 65)
    with pytest.raises(InvalidParameterValue, match="10000"):
        client.jobs.run_now(job_id, job_parameters={"document": "x" * 10_001})


def test_an_unknown_run_is_resource_does_not_exist(client: WorkspaceClient) -> None:
    from databricks.sdk.errors import ResourceDoesNotExist

    with pytest.raises(ResourceDoesNotExist, match="Run 123 does not exist"):
        client.jobs.get_run(123)


async def test_output_belongs_to_the_run_of_the_task(story: Story) -> None:
    from databricks.sdk.errors import InvalidParameterValue

    run_id = await story.start(story.job())
    await story.end(run_id)
    assert story.task_run(run_id) != run_id
    with pytest.raises(InvalidParameterValue, match="multiple tasks"):
        story.client.jobs.get_run_output(run_id)


async def test_a_submitted_file_runs_with_references_filled_in(story: Story, client: WorkspaceClient) -> None:
    from databricks.sdk.service import jobs

    task = jobs.SubmitTask(
        task_key="main",
        spark_python_task=jobs.SparkPythonTask(python_file="twenty_lines.py", parameters=["{{job.run_id}}", "world"]),
    )
    run_id = int(client.jobs.submit(run_name="one time", tasks=[task]).run_id)
    assert await story.end(run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")
    assert client.jobs.get_run_output(story.task_run(run_id)).logs == f"hello {run_id} world\n"
    run = story.run(run_id)
    assert run.run_type is not None and run.run_type.value == "SUBMIT_RUN"


async def test_a_file_from_a_volume_runs_too(story: Story, client: WorkspaceClient) -> None:
    import io

    from databricks.sdk.service import jobs

    path = "/Volumes/main/code/agents/mine.py"
    client.files.upload(path, io.BytesIO(b"print('from the volume')"), overwrite=True)
    task = jobs.SubmitTask(task_key="main", spark_python_task=jobs.SparkPythonTask(python_file=path))
    run_id = int(client.jobs.submit(tasks=[task]).run_id)
    assert await story.end(run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")
    assert client.jobs.get_run_output(story.task_run(run_id)).logs == "from the volume\n"


async def test_runs_above_the_jobs_limit_are_skipped_or_queued(story: Story, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    skipping, queueing = story.job(max_concurrent_runs=1), story.job(max_concurrent_runs=1, queued=True)
    for job_id, expected in ((skipping, "SKIPPED"), (queueing, "QUEUED")):
        first = await story.start(job_id, wait_for=str(gate))
        await story.becomes(first, "RUNNING")
        second = await story.start(job_id)
        assert story.state(second)[0] == expected
    assert story.state(await story.start(skipping)) == (
        "SKIPPED", "MAXIMUM_CONCURRENT_RUNS_REACHED", "MAX_CONCURRENT_RUNS_EXCEEDED",
    )  # fmt: skip
    gate.touch()
    for run in story.client.jobs.list_runs(job_id=queueing):
        assert run.run_id is not None
        assert await story.end(run.run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")


async def test_runs_are_listed_newest_first_in_pages(story: Story) -> None:
    job_id = story.job()
    made = [await story.start(job_id) for _ in range(7)]
    for run_id in made:
        await story.end(run_id)
    assert [run.run_id for run in story.client.jobs.list_runs(job_id=job_id, limit=3)] == made[::-1]
    assert list(story.client.jobs.list_runs(job_id=job_id, active_only=True)) == []
    late = story.run(made[3]).start_time
    assert {run.run_id for run in story.client.jobs.list_runs(job_id=job_id, start_time_from=late)} >= set(made[3:])


@pytest.mark.parametrize("tasks", [[], [{"notebook_task": {"notebook_path": "/x"}}], [{}, {}]])
def test_a_job_the_double_cannot_run_is_refused_at_once(client: WorkspaceClient, tasks: list[object]) -> None:
    from databricks.sdk.errors import InvalidParameterValue

    with pytest.raises(InvalidParameterValue, match="workspace double runs"):
        client.api_client.do("POST", "/api/2.2/jobs/create", body={"name": "x", "tasks": tasks})
