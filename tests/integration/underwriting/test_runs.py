from __future__ import annotations

from shared.contract.underwriting import review_id
from shared.contract.underwriting_samples import SAMPLES
from tests.support.underwriting import Underwriting


async def test_a_run_goes_from_request_to_decision(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start()
        waiting = await desk.reaches(run, "awaiting_review")
        assert waiting["condition"] == "waiting_for_person"
        assert waiting["review_id"] == review_id(run, 1)
        assert waiting["recommendation"]["recommendation"] == "refer"
        assert "not a language model" in waiting["recommendation"]["summary"]
        assert waiting["policy"]["policy_version"] == "2026-04"
        receipt = await desk.decide(run)
        assert receipt.effect == "decided"
        assert await desk.handle(run).result() == "approved"
    row = await desk.row(run)
    assert (row["state"], row["outcome"]) == ("completed", "approved")
    tools = await desk.rows("agent_tool_calls", run, "position")
    assert [(tool["tool"], tool["state"]) for tool in tools] == [
        ("credit_check", "succeeded"), ("income_verification", "succeeded"),
        ("debt_to_income_calc", "succeeded"), ("policy_lookup", "succeeded"),
    ]  # fmt: skip
    assert tools[2]["result"]["dti_percent"] == 37.89
    decisions = await desk.rows("agent_review_decisions", run)
    assert [(each["status"], each["effect"]) for each in decisions] == [("accepted", "decided")]
    names = [event["name"] for event in await desk.rows("events", run, "at")]
    assert names == ["agent.run_started", "agent.review_pending", "agent.decision_accepted", "agent.run_completed"]


async def test_each_sample_is_recommended_as_the_policy_says(desk: Underwriting) -> None:
    async with desk.worker():
        runs = [await desk.start(sample) for sample in SAMPLES]
        rows = [await desk.reaches(run, "awaiting_review") for run in runs]
    assert {row["applicant"]: row["recommendation"]["recommendation"] for row in rows} == {
        sample.applicant: sample.expected for sample in SAMPLES
    }
    assert rows[7]["failed_tools"] == 2, "no credit file: neither a score nor a ratio"
