from __future__ import annotations

from uuid import uuid4

import pytest

from services.underwriting_api.loops import CancelLoop, DecisionLoop, StartLoop
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Api, Underwriting


async def test_the_story_from_request_to_decision(desk: Underwriting, api: Api) -> None:
    async with desk.worker():
        made = await api.start()
        assert made.status_code == 201, made.text
        run = made.json()["run_id"]
        await desk.reaches(run, "awaiting_review")
        detail = await api.get(f"runs/{run}")
        assert detail["condition"] == "waiting_for_person"
        assert [each["role"] for each in detail["messages"]] == ["system", "user", "assistant"]
        assert [review["state"] for review in detail["reviews"]] == ["open"]
        assert detail["reviews"][0]["policy"]["policy_version"] == "2026-04"
        assert detail["temporal"]["pending_activities"] == []
        asked = await api.decide(run, "request_more_info", note="Please check the credit file again.")
        assert (asked.status_code, asked.json()["status"]) == (202, "accepted")
        await desk.reaches(run, "awaiting_review", turn=2)
        late = await api.decide(run, "approve", turn=1)
        assert (late.status_code, late.json()["reason"]) == (409, "stale_review")
        assert late.headers["content-type"] == "application/problem+json"
        done = await api.decide(run, "approve", turn=2)
        assert (done.status_code, done.json()["effect"]) == (202, "decided")
        await desk.reaches(run, "completed")
        after = await api.decide(run, "deny", turn=2, reviewer="reviewer-2")
        assert (after.status_code, after.json()["reason"]) == (409, "run_ended")
    detail = await api.get(f"runs/{run}")
    assert [review["state"] for review in detail["reviews"]] == ["decided", "decided"]
    assert sum(len(review["decisions"]) for review in detail["reviews"]) == 4, "refusals are on record too"
    refused = [event for event in detail["events"] if event["name"] == "agent.decision_refused"]
    assert sorted(event["details"]["refusal"] for event in refused) == ["run_ended", "stale_review"]
    assert sum(event["name"] == "agent.decision_accepted" for event in detail["events"]) == 2
    tools = [(call["turn"], call["tool"]) for call in detail["tool_calls"] if call["turn"] == 2]
    assert tools == [(2, "policy_lookup"), (2, "credit_check")], "the question had the model look again"
    listed = await api.get("runs", user="loan-desk", state="completed")
    assert [each["run_id"] for each in listed["runs"]] == [run]
    assert listed["runs"][0]["input_tokens"] == detail["input_tokens"] > 0


async def test_the_same_key_is_the_same_run(api: Api) -> None:
    first, again = await api.start(key="one"), await api.start(key="one")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["run_id"] == again.json()["run_id"]
    other = await api.start(key="one", amount="1.00")
    assert (other.status_code, other.json()["reason"]) == (409, "key_in_use")


async def test_t_02_a_decision_sent_twice_is_one_decision(desk: Underwriting, api: Api) -> None:
    async with desk.worker():
        run = (await api.start()).json()["run_id"]
        await desk.reaches(run, "awaiting_review")
        decision = str(uuid4())
        first = await api.decide(run, decision_id=decision)
        await desk.reaches(run, "completed")
        again = await api.decide(run, decision_id=decision)
        assert first.json() == again.json()
        assert again.status_code == 202
        other = await api.decide(run, "deny", decision_id=decision)
        assert (other.status_code, other.json()["reason"]) == (409, "id_in_use")
    rows = await desk.rows("agent_review_decisions", run, "received_at")
    assert [row["status"] for row in rows] == ["accepted", "refused"]


async def test_decisions_without_a_worker_are_received_and_applied_later(desk: Underwriting, api: Api) -> None:
    async with desk.worker():
        run = (await api.start()).json()["run_id"]
        await desk.reaches(run, "awaiting_review")
    answer = await api.decide(run)
    assert (answer.status_code, answer.json()["status"]) == (202, "received")
    async with desk.worker():
        await desk.reaches(run, "completed")
    await desk.database.owner.execute("UPDATE agent_ops.agent_review_decisions SET next_delivery_at = NULL")
    known = await api.get(f"decisions/{answer.json()['decision_id']}")
    assert (known["status"], known["effect"]) == ("accepted", "decided")


async def test_a_request_and_a_decision_survive_that_temporal_is_away(
    desk: Underwriting, api: Api, temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    made = await api.start()
    run = made.json()["run_id"]
    assert (made.status_code, made.json()["state"]) == (201, "starting")
    assert (await api.get(f"runs/{run}"))["condition"] == "waiting_for_temporal"
    decided = await api.decide(run)
    assert (decided.status_code, decided.json()["status"]) == (202, "received")
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.address)
    api.temporal._client = None
    await desk.database.owner.execute(
        "UPDATE agent_ops.agent_runs SET next_start_at = now() WHERE next_start_at IS NOT NULL"
    )
    await desk.database.owner.execute("UPDATE agent_ops.agent_review_decisions SET next_delivery_at = now()")
    starts = StartLoop(api.storage, api.delivery, api.settings)
    assert await starts.run_once() is False
    async with desk.worker():
        await desk.reaches(run, "awaiting_review")
        await DecisionLoop(api.storage, api.delivery, api.settings).run_once()
        await desk.reaches(run, "completed")


async def test_a_cancelled_run_says_so_and_keeps_its_evidence(desk: Underwriting, api: Api) -> None:
    async with desk.worker():
        run = (await api.start()).json()["run_id"]
        await desk.reaches(run, "awaiting_review")
        answer = await api.http.post(f"/api/v1/underwriting/runs/{run}/cancel")
        assert answer.status_code == 202
        row = await desk.reaches(run, "cancelled")
        assert row["outcome"] == "cancelled"
        late = await api.decide(run)
        assert (late.status_code, late.json()["reason"]) == (409, "run_ended")
    assert len(await desk.rows("agent_tool_calls", run)) == 4
    again = await api.http.post(f"/api/v1/underwriting/runs/{run}/cancel")
    assert again.status_code == 409
    await CancelLoop(api.storage, api.delivery, api.settings).run_once()


async def test_what_is_not_valid_is_said_by_name(api: Api) -> None:
    bad = await api.start(purpose="yacht")
    assert (bad.status_code, bad.json()["errors"][0]["loc"][-1]) == (422, "purpose")
    missing = await api.http.get(f"/api/v1/underwriting/runs/{uuid4()}")
    assert missing.status_code == 404
    foreign = await api.http.post("/api/v1/underwriting/runs", json={}, headers={"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    huge = await api.start(applicant="x" * 100_000)
    assert huge.status_code == 413


async def test_figures_count_states_and_attempts(desk: Underwriting, api: Api) -> None:
    async with desk.worker():
        run = (await api.start()).json()["run_id"]
        await desk.reaches(run, "awaiting_review")
    figures = await api.get("metrics/workflow")
    assert figures["states"] == {"awaiting_review": 1}
    assert figures["conditions"] == {"waiting_for_person": 1}
    attempts = (await api.get("metrics/retries"))["activities"]
    assert {each["activity"] for each in attempts} >= {"credit_check", "call_model", "open_review"}
    assert all(each["succeeded"] == each["attempts"] for each in attempts)
    assert len((await api.get("policy"))["limits"]) == 6
    assert len((await api.get("samples"))["samples"]) == 10
