from __future__ import annotations

from tests.support.underwriting import Underwriting

UPDATE = "UPDATE agent_policy.underwriting_policy_limits SET "


async def test_a_change_in_the_middle_of_a_run_is_seen_by_the_next_lookup_and_both_are_on_record(
    desk: Underwriting,
) -> None:
    async with desk.worker():
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
        await desk.database.owner.execute(UPDATE + "policy_version = '2026-05', automatic_approval_dti = 40")
        await desk.decide(run, "request_more_info", note="Is it still so?")
        row = await desk.reaches(run, "awaiting_review", turn=2)
    assert row["policy"]["policy_version"] == "2026-05"
    assert row["recommendation"]["recommendation"] == "approve"
    lookups = [call for call in await desk.rows("agent_tool_calls", run, "turn") if call["tool"] == "policy_lookup"]
    assert [call["result"]["policy_version"] for call in lookups] == ["2026-04", "2026-05"]
    rules = {rule["rule"]: rule for rule in lookups[0]["result"]["rules"]}
    assert rules["automatic_approval_dti"] == {
        "rule": "automatic_approval_dti", "threshold": 36.0, "actual": 37.89, "passed": False,
        "source": "debt_to_income_calc", "recommendation": "refer",
        "rationale": "debt-to-income of 37.89 % is above 36 %",
    }  # fmt: skip
    changed = [event for event in await desk.rows("events", run) if event["name"] == "agent.policy_changed"]
    assert changed[0]["details"]["before"]["policy_version"] == "2026-04"
    assert changed[0]["details"]["after"]["policy_version"] == "2026-05"


async def test_without_a_policy_the_run_fails_closed(desk: Underwriting) -> None:
    await desk.database.owner.execute("DELETE FROM agent_policy.underwriting_policy_limits")
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert (row["recommendation"]["recommendation"], row["policy"]) == ("refer", None)
    failed = next(call for call in await desk.rows("agent_tool_calls", run) if call["tool"] == "policy_lookup")
    assert failed["error"]["reason"] == "policy_missing"


async def test_the_fixture_stands_in_only_when_the_settings_say_so_and_says_it_did(desk: Underwriting) -> None:
    await desk.database.owner.execute("DELETE FROM agent_policy.underwriting_policy_limits")
    async with desk.worker(policy_fallback="fixture_fallback"):
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["policy"]["source"] == "fixture_fallback"
    assert row["recommendation"]["recommendation"] == "refer"


async def test_a_sync_that_lags_is_marked(desk: Underwriting) -> None:
    await desk.database.owner.execute(UPDATE + "synced_at = now() - interval '3 days'")
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["policy"]["stale"] is True
