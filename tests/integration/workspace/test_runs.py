"""How runs end: well, by an exception, by a kill, by a cancel, by time, with the double itself."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shared.testing.wait import until
from tests.integration.workspace.conftest import SETTINGS, Story, sdk
from tests.support.workspace import WorkspaceDouble


async def test_an_exception_fails_the_run_and_its_trace_is_in_the_tasks_output(story: Story) -> None:
    run_id = await story.start(story.job(), mode="fail")
    assert await story.end(run_id) == ("INTERNAL_ERROR", "FAILED", "RUN_EXECUTION_ERROR")
    run = story.run(run_id)
    assert run.state is not None and run.state.state_message is not None
    assert "no such document" not in run.state.state_message
    assert run.tasks and run.tasks[0].state and run.tasks[0].state.life_cycle_state
    assert run.tasks[0].state.life_cycle_state.value == "TERMINATED"
    output = story.client.jobs.get_run_output(story.task_run(run_id))
    assert output.error == "ValueError: no such document"
    assert output.error_trace is not None and "story_agent.py" in output.error_trace


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("exit", ("INTERNAL_ERROR", "FAILED", "RUN_EXECUTION_ERROR")),
        ("exit_well", ("TERMINATED", "SUCCESS", "SUCCESS")),
        ("vanish", ("TERMINATED", "SUCCESS", "SUCCESS")),
        ("killed", ("INTERNAL_ERROR", "FAILED", "DRIVER_ERROR")),
    ],
)
async def test_ways_to_leave(story: Story, mode: str, end: tuple[str, str, str]) -> None:
    assert await story.end(await story.start(story.job(), mode=mode)) == end


async def test_after_a_killed_process_the_next_run_has_a_fresh_one(story: Story) -> None:
    job_id = story.job()
    for _ in range(3):
        await story.end(await story.start(job_id, mode="killed"))
    assert await story.end(await story.start(job_id)) == ("TERMINATED", "SUCCESS", "SUCCESS")


async def test_what_a_killed_process_started_is_ended_too(story: Story, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    await story.end(await story.start(story.job(), mode="leave_child", touch=str(mark)))
    child = int(mark.read_text())
    await until(lambda: not _alive(child))


async def test_a_process_killed_while_idle_harms_no_run(story: Story, double: WorkspaceDouble) -> None:
    health = await until(lambda: double.http.get("/health").json()["processes"]["idle"] == 2 or None)
    assert health
    for pid in double.http.get("/health").json()["processes"]["pids"]:
        os.kill(pid, signal.SIGKILL)
    assert await story.end(await story.start(story.job())) == ("TERMINATED", "SUCCESS", "SUCCESS")


async def test_a_run_changes_nothing_for_the_next_one(story: Story) -> None:
    job_id = story.job()
    for _ in range(4):
        run_id = await story.start(job_id)
        await story.end(run_id)
        logs = story.client.jobs.get_run_output(story.task_run(run_id)).logs
        assert logs is not None and logs.count("greeting=hello") == 1


async def test_a_cancelled_run_ends_cancelled_and_its_process_is_gone(story: Story, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run_id = await story.start(story.job(), mode="sleep", touch=str(mark))
    await until(lambda: mark.exists() and mark.read_text())
    pid = int(mark.read_text().split()[0])
    story.client.jobs.cancel_run(run_id)
    assert story.state(run_id)[0] in {"TERMINATING", "TERMINATED"}
    assert await story.end(run_id) == ("TERMINATED", "CANCELED", "USER_CANCELED")
    run = story.run(run_id)
    assert run.state is not None and run.state.user_cancelled_or_timedout is True
    assert not _alive(pid)
    story.client.jobs.cancel_run(run_id)
    assert story.state(run_id) == ("TERMINATED", "CANCELED", "USER_CANCELED")


async def test_a_finished_run_keeps_its_result_when_cancelled(story: Story) -> None:
    run_id = await story.start(story.job())
    await story.end(run_id)
    story.client.jobs.cancel_run(run_id)
    assert story.state(run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")


async def test_cancel_all_ends_running_and_waiting_runs_of_one_job(story: Story) -> None:
    job_id = story.job(max_concurrent_runs=3, queued=True)
    runs = [await story.start(job_id, mode="sleep") for _ in range(5)]
    states = [story.state(run_id)[0] for run_id in runs]
    assert states[3:] == ["QUEUED", "QUEUED"]
    story.client.jobs.cancel_all_runs(job_id=job_id)
    for run_id in runs:
        assert (await story.end(run_id))[1] == "CANCELED"


async def test_runs_wait_as_pending_while_every_process_is_busy(story: Story, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = story.job()
    busy = [await story.start(job_id, wait_for=str(gate)) for _ in range(2)]
    for run_id in busy:
        await story.becomes(run_id, "RUNNING")
    waiting = await story.start(job_id)
    assert story.state(waiting)[0] == "PENDING"
    gate.touch()
    assert await story.end(waiting) == ("TERMINATED", "SUCCESS", "SUCCESS")


async def test_a_run_over_its_time_ends_timed_out(story: Story) -> None:
    from databricks.sdk.service import jobs

    task = jobs.SubmitTask(
        task_key="main",
        python_wheel_task=jobs.PythonWheelTask(
            package_name="story", entry_point="story", named_parameters={"mode": "sleep"}
        ),
    )
    run_id = int(story.client.jobs.submit(tasks=[task], timeout_seconds=1).run_id)
    assert (await story.end(run_id))[:2] == ("TERMINATED", "TIMEDOUT")


async def test_an_unknown_entry_point_fails_the_run_and_says_so(story: Story, double: WorkspaceDouble) -> None:
    run_id = await story.start(double.make_job("lost", "no-such-agent"))
    assert (await story.end(run_id))[1] == "FAILED"
    output = story.client.jobs.get_run_output(story.task_run(run_id))
    assert output.error is not None and "no-such-agent" in output.error


async def test_state_and_tokens_survive_a_killed_double(tmp_path: Path) -> None:
    settings: dict[str, object] = {**SETTINGS, "processes": 1}
    double = WorkspaceDouble(tmp_path / "home", **settings)
    story = Story(sdk(double), double)
    job_id = story.job()
    done = await story.start(job_id, token="token-done")
    await story.end(done)
    mark = tmp_path / "mark"
    running = await story.start(job_id, token="token-running", mode="sleep", touch=str(mark))
    await until(lambda: mark.exists() and mark.read_text())
    waiting = await story.start(job_id, token="token-waiting")
    assert story.state(waiting)[0] == "PENDING"
    pids = double.http.get("/health").json()["processes"]["pids"]
    double.process.kill()
    double.process.wait(10)
    await until(lambda: not any(_alive(pid) for pid in pids))

    again = WorkspaceDouble(tmp_path / "home", **settings)
    try:
        story = Story(sdk(again), again)
        assert story.state(done) == ("TERMINATED", "SUCCESS", "SUCCESS")
        assert story.state(running) == ("INTERNAL_ERROR", "FAILED", "INTERNAL_ERROR")
        assert await story.end(waiting) == ("TERMINATED", "SUCCESS", "SUCCESS")
        for token, run_id in (("token-done", done), ("token-running", running), ("token-waiting", waiting)):
            assert await story.start(job_id, token) == run_id
    finally:
        again.stop()
        double.stop()


async def test_a_process_is_replaced_after_its_share_of_runs(tmp_path: Path) -> None:
    double = WorkspaceDouble(tmp_path, **{**SETTINGS, "processes": 1, "runs_per_process": 2})
    try:
        story = Story(sdk(double), double)
        job_id = story.job()
        pids = []
        for _ in range(5):
            run_id = await story.start(job_id)
            await story.end(run_id)
            logs = story.client.jobs.get_run_output(story.task_run(run_id)).logs
            assert logs is not None
            pids.append(logs.rsplit("pid=", 1)[1].strip())
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    finally:
        double.stop()


async def test_two_hundred_runs_all_end_well(story: Story) -> None:
    job_id = story.job(max_concurrent_runs=1000)
    runs = await asyncio.gather(*(story.start(job_id) for _ in range(200)))
    assert len(set(runs)) == 200
    for run_id in runs:
        assert await story.end(run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
