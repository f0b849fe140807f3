"""Login through the unchanged SDK, and what an intruder sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.workspace.conftest import SETTINGS, sdk
from tests.support.workspace import WorkspaceDouble

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient


def test_the_sdk_finds_workspace_and_login_by_itself(client: WorkspaceClient) -> None:
    assert client.config.workspace_id == "4711000000000001"
    assert list(client.jobs.list(name="nothing of this name")) == []


def test_a_wrong_secret_is_refused_with_a_reason(double: WorkspaceDouble) -> None:
    with pytest.raises(ValueError, match="invalid_client"):
        list(sdk(double, client_secret="wrong").jobs.list())


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer nonsense", "Bearer a.b.c", "Basic bG9j"])
def test_a_call_without_a_genuine_token_is_401_in_the_form_the_sdk_reads(double: WorkspaceDouble, header: str) -> None:
    answer = double.http.get("/api/2.2/jobs/list", headers={"Authorization": header})
    assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHENTICATED")


def test_an_unknown_call_is_404_endpoint_not_found(double: WorkspaceDouble) -> None:
    answer = double.http.get("/api/2.0/clusters/list")
    assert (answer.status_code, answer.json()["error_code"]) == (404, "ENDPOINT_NOT_FOUND")


def test_tokens_end_by_time_and_survive_a_restart(tmp_path: Path) -> None:
    short = WorkspaceDouble(tmp_path, **{**SETTINGS, "warm_up_delay_seconds": 3600, "token_seconds": 3600})
    token = short.http.headers["Authorization"]
    short.stop()
    again = WorkspaceDouble(tmp_path, **{**SETTINGS, "warm_up_delay_seconds": 3600, "token_seconds": 1})
    try:
        known = again.http.get("/api/2.2/jobs/list", headers={"Authorization": token})
        assert known.status_code == 200
        while again.http.get("/api/2.2/jobs/list").status_code == 200:
            pass
        assert again.http.get("/api/2.2/jobs/list").status_code == 401
    finally:
        again.stop()


def test_several_service_principals_have_their_own_names(tmp_path: Path) -> None:
    settings = {"principals": {"lockkeeper_sweeper": "s1"}, "warm_up_delay_seconds": 3600}
    double = WorkspaceDouble(tmp_path, **{**SETTINGS, **settings})
    try:
        job_id = sdk(double, "lockkeeper_sweeper", "s1").api_client.do(
            "POST",
            "/api/2.2/jobs/create",
            body={"name": "x", "tasks": [{"python_wheel_task": {"package_name": "a", "entry_point": "story"}}]},
        )["job_id"]
        assert double.http.get("/api/2.2/jobs/get", params={"job_id": job_id}).json()["creator_user_name"] == (
            "lockkeeper_sweeper"
        )
    finally:
        double.stop()


def test_an_unknown_setting_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unknown settings: LOCKKEEPER_WORKSPACE_COLOUR"):
        WorkspaceDouble(tmp_path, colour="blue")
