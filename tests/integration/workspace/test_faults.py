"""Every way in which the double can be made to misbehave."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

import httpx
import pytest

from shared.testing.wait import until
from tests.integration.workspace.conftest import Story
from tests.support.workspace import WorkspaceDouble

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient


def test_a_status_with_retry_after_is_waited_for_by_the_sdk(double: WorkspaceDouble, client: WorkspaceClient) -> None:
    double.fault("jobs.list", "status", status=429, retry_after="1", times=1)
    began = time.monotonic()
    list(client.jobs.list())
    assert 1 <= time.monotonic() - began < 4


@pytest.mark.parametrize("kind", ["drop_after_effect", "status_after_effect", "drop"])
async def test_a_lost_answer_is_asked_again_with_the_same_token(story: Story, kind: str) -> None:
    job_id = story.job()
    story.double.fault("jobs.run_now", kind, times=1)
    run_id = await story.start(job_id, str(uuid.uuid4()))
    await story.end(run_id)
    assert [run.run_id for run in story.client.jobs.list_runs(job_id=job_id)] == [run_id]


async def test_a_lost_answer_without_a_token_starts_two_runs(story: Story) -> None:
    job_id = story.job()
    story.double.fault("jobs.run_now", "drop_after_effect", times=1)
    await story.end(await story.start(job_id))
    assert len(list(story.client.jobs.list_runs(job_id=job_id))) == 2


def test_a_rule_strikes_only_what_matches_after_the_ones_it_lets_pass(double: WorkspaceDouble) -> None:
    rule = double.fault("jobs.*", "status", status=500, skip=1, match={"query": {"name": "mine"}})
    answers = [double.http.get("/api/2.2/jobs/list", params={"name": name}).status_code for name in ("mine", "other")]
    assert answers == [200, 200]
    assert double.http.get("/api/2.2/jobs/list", params={"name": "mine"}).json()["error_code"] == "INTERNAL_ERROR"
    listed = double.http.get("/faults").json()
    assert [(one["id"], one["used"]) for one in listed["rules"]] == [(rule, 1)]
    assert "jobs.run_now" in listed["apis"]
    assert double.http.delete(f"/faults/{rule}").status_code == 204
    assert double.http.get("/api/2.2/jobs/list", params={"name": "mine"}).status_code == 200


def test_a_body_can_be_matched_without_being_lost(double: WorkspaceDouble) -> None:
    job_id = double.make_job("matched", "story")
    double.fault("jobs.run_now", "status", status=503, match={"body": {"idempotency_token": "a"}})
    answers = [
        double.http.post("/api/2.2/jobs/run-now", json={"job_id": job_id, "idempotency_token": token}).status_code
        for token in ("a", "b")
    ]
    assert answers == [503, 200]


@pytest.mark.parametrize("rule", [{"api": "jobs.run_later", "kind": "drop"}, {"api": "jobs.*", "kind": "burn"}, {}])
def test_a_misspelt_rule_is_refused(double: WorkspaceDouble, rule: dict[str, str]) -> None:
    assert double.http.post("/faults", json=rule).status_code == 422


async def test_a_hanging_call_goes_silent_until_the_rule_is_gone(double: WorkspaceDouble) -> None:
    double.fault("jobs.list", "hang")
    async with httpx.AsyncClient(base_url=double.url, trust_env=False, headers=double.http.headers) as http:
        silent = asyncio.create_task(http.get("/api/2.2/jobs/list", timeout=30))
        await until(lambda: double.http.get("/faults").json()["rules"][0]["used"] == 1)
        assert not silent.done()
        double.mend()
        with pytest.raises(httpx.RemoteProtocolError):
            await silent


@pytest.mark.parametrize("state", ["QUEUED", "PENDING", "BLOCKED", "WAITING_FOR_RETRY", "TERMINATING", "DREAMING"])
async def test_a_run_can_be_held_in_any_state(story: Story, state: str) -> None:
    rule = story.double.fault("run", "hold", state=state, times=1)
    run_id = await story.start(story.job())

    def shown() -> object:
        answer = story.double.http.get("/api/2.2/jobs/runs/get", params={"run_id": run_id}).json()
        return answer["state"]["life_cycle_state"], answer["status"]["state"]

    later = {"WAITING_FOR_RETRY": "WAITING"}.get(state, state)
    await until(lambda: shown() == (state, later))
    assert story.double.http.delete(f"/faults/{rule}").status_code == 204
    assert await story.end(run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")


@pytest.mark.parametrize(
    ("state", "result", "code"),
    [
        ("TERMINATED", "SUCCESS", "SUCCESS"),
        ("TERMINATED", "FAILED", "RUN_EXECUTION_ERROR"),
        ("TERMINATED", "TIMEDOUT", "CANCELED"),
        ("TERMINATED", "CANCELED", "USER_CANCELED"),
        ("SKIPPED", None, "SKIPPED"),
        ("INTERNAL_ERROR", "FAILED", "CLOUD_FAILURE"),
    ],
)
async def test_a_run_can_be_made_to_end_in_any_way(story: Story, state: str, result: str | None, code: str) -> None:
    story.double.fault("run", "end", state=state, result=result, code=code, times=1, match={"run_name": "story"})
    assert await story.end(await story.start(story.job())) == (state, result, code)


async def test_a_run_can_die_without_a_word(story: Story) -> None:
    story.double.fault("run", "die_silently", times=1)
    run_id = await story.start(story.job(), mode="fail")
    assert await story.end(run_id) == ("TERMINATED", "SUCCESS", "SUCCESS")
    assert story.client.jobs.get_run_output(story.task_run(run_id)).logs == ""


async def test_a_run_can_lose_its_process(story: Story) -> None:
    story.double.fault("run", "kill", seconds=0.05, match={"parameters": {"task_id": "t"}})
    run_id = await story.start(story.job(), mode="sleep", task_id="t")
    assert await story.end(run_id) == ("INTERNAL_ERROR", "FAILED", "DRIVER_ERROR")
