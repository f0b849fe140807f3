"""The way from an attempt to its run and its trace."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import TestDatabase
from tests.integration.console.conftest import Console, serve
from tests.support.workspace import WorkspaceDouble


async def attempted(console: Console, run_id: int | None, trace_id: str | None = None) -> str:
    """The path of an attempt with these ids."""
    await console.make_agent()
    task = (await console.enqueue())["id"]
    attempt = await console.database.owner.fetchval(
        "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, run_id, trace_id) "
        "VALUES (gen_random_uuid(), $1, 'reader', 1, 'running', now(), $2, $3) RETURNING id",
        task, run_id, trace_id,
    )  # fmt: skip
    return f"/tasks/{task}/attempts/{attempt}"


async def test_an_attempt_leads_to_its_run_where_the_workspace_shows_it(
    storing_console: Console, workspace: WorkspaceDouble
) -> None:
    job = workspace.make_job("shown")
    run = workspace.http.post("/api/2.2/jobs/run-now", json={"job_id": job}).json()["run_id"]
    path = await attempted(storing_console, run)
    led = await storing_console.http.get(f"{path}/run")
    page = workspace.http.get("/api/2.2/jobs/runs/get", params={"run_id": run}).json()["run_page_url"]
    assert (led.status_code, led.headers["location"]) == (303, page)
    assert str(run) in page
    assert "<h1>" in workspace.http.get("/").text
    workspace.http.post("/api/2.2/jobs/runs/cancel-all", json={"job_id": job})


async def test_a_run_that_the_workspace_forgot_is_said_in_words(storing_console: Console) -> None:
    path = await attempted(storing_console, 404_404)
    told = await storing_console.http.get(f"{path}/run")
    assert told.status_code == 404
    assert "This run is not there" in told.text
    assert f'href="{path.partition("/attempts")[0]}"' in told.text


async def test_without_ids_or_a_tracking_server_there_is_no_way(database: TestDatabase, tmp_path: Path) -> None:
    async with serve(database, tmp_path, MLFLOW_TRACKING_URI="") as console:
        path = await attempted(console, None, "tr-1")
        assert (await console.http.get(f"{path}/run")).status_code == 404
        told = await console.http.get(f"{path}/trace")
        assert told.status_code == 404
        assert "MLFLOW_TRACKING_URI" in told.text
        assert "data-traces" not in (await console.http.get(path.partition("/attempts")[0])).text


async def test_a_tracking_server_that_is_away_is_no_error_of_ours(database: TestDatabase, tmp_path: Path) -> None:
    async with serve(database, tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:1") as console:
        path = await attempted(console, None, "tr-1")
        told = await console.http.get(f"{path}/trace")
        assert told.status_code == 503
        assert "cannot be shown now" in told.text
        assert "data-traces" in (await console.http.get(path.partition("/attempts")[0])).text
