from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from lockkeeper.checks import examine
from shared.contract.errors import TransientError
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


COLUMNS = (
    "purpose, policy_name, policy_version, minimum_score, automatic_approval_dti, hard_reject_score, hard_reject_dti"
)
GRANT = "GRANT SELECT ON agent_policy_sync.underwriting_policy_limits TO {}"
READERS = "lockkeeper_underwriting_worker, lockkeeper_underwriting_api"


@pytest.fixture
async def platform(desk: Underwriting) -> AsyncIterator[str]:
    """The role that owns synced tables, as the platform has one; its schema is there and may be used."""
    name = f"platform_sync_{uuid4().hex[:8]}"
    for statement in (
        f"CREATE ROLE {name} NOLOGIN",
        f"CREATE SCHEMA agent_policy_sync AUTHORIZATION {name}",
        f"GRANT USAGE ON SCHEMA agent_policy_sync TO {READERS}",
        f"GRANT SELECT ON agent_policy.underwriting_policy_limits TO {name}",
        f"GRANT USAGE ON SCHEMA agent_policy TO {name}",
    ):
        await desk.database.owner.execute(statement)
    yield name
    await desk.database.owner.execute(f"DROP OWNED BY {name} CASCADE")
    await desk.database.owner.execute(f"DROP ROLE {name}")


async def refresh(desk: Underwriting, owner: str, version: str) -> None:
    """What a full refresh does: the table is made anew by its owner, and nobody else may read it."""
    async with desk.database.owner.transaction():
        await desk.database.owner.execute(f"SET LOCAL ROLE {owner}")
        await desk.database.owner.execute("DROP TABLE IF EXISTS agent_policy_sync.underwriting_policy_limits")
        await desk.database.owner.execute(
            f"CREATE TABLE agent_policy_sync.underwriting_policy_limits AS SELECT {COLUMNS} "
            "FROM agent_policy.underwriting_policy_limits"
        )
        await desk.database.owner.execute(
            "UPDATE agent_policy_sync.underwriting_policy_limits SET policy_version = $1", version
        )


async def test_a_synced_table_of_another_role_is_read_when_granted_and_fails_closed_when_a_refresh_took_the_grant(
    desk: Underwriting, platform: str
) -> None:
    await refresh(desk, platform, "2026-07")
    await desk.database.owner.execute(GRANT.format(READERS))
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
        assert (row["policy"]["policy_version"], row["policy"]["source"]) == ("2026-07", "unity_catalog")
        assert [each.state for each in await examine(desk.database.url()) if each.name == "policy"] == ["ok"]

        await refresh(desk, platform, "2026-08")
        assert [each.state for each in await examine(desk.database.url()) if each.name == "policy"] == ["broken"]
        await desk.decide(run, "request_more_info", note="And under the new policy?")
        row = await desk.reaches(run, "awaiting_review", turn=2)
        assert row["recommendation"]["recommendation"] == "refer"
        failed = next(call for call in await desk.rows("agent_tool_calls", run, "turn DESC") if call["error"])
        assert failed["error"]["reason"] == "policy_unreadable"

        await desk.database.owner.execute(GRANT.format(READERS))
        await desk.decide(run, "request_more_info", turn=2, note="Now?")
        row = await desk.reaches(run, "awaiting_review", turn=3)
    assert row["policy"]["policy_version"] == "2026-08"


async def test_a_sync_that_is_gone_is_no_reason_to_read_older_limits(desk: Underwriting, platform: str) -> None:
    assert platform
    async with desk.worker():
        row = await desk.reaches(await desk.start(), "awaiting_review")
    assert (row["policy"], row["failed_tools"]) == (None, 1)


async def test_a_program_that_is_newer_than_its_database_waits_for_the_migration(desk: Underwriting) -> None:
    with pytest.raises(TransientError) as refused:
        await desk.pool.fetch("SELECT * FROM agent_ops.of_tomorrow")
    assert refused.value.reason == "database_unready"
