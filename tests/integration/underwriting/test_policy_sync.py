from __future__ import annotations

import os
from pathlib import Path

import yaml

from deploy.local.policy_sync import DELIVERED, read_policy, synchronise
from tests.conftest import TestDatabase

VERSIONS = "SELECT purpose, policy_version FROM agent_policy.underwriting_policy_limits"


async def test_the_table_follows_the_policy_and_loses_what_the_sync_lost(database: TestDatabase) -> None:
    policy = yaml.safe_load(DELIVERED.read_text())
    await synchronise(database.url(), policy)
    assert len(await database.owner.fetch(VERSIONS)) == 6
    policy["limits"]["auto"]["policy_version"] = "2026-09"
    policy["vanished"] = ["personal"]
    await synchronise(database.url(), policy)
    found = dict(await database.owner.fetch(VERSIONS))
    assert found["auto"] == "2026-09"
    assert "personal" not in found


def test_a_half_written_policy_is_left_alone_and_a_change_has_an_age(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("limits: {auto: {policy_name: half")
    assert read_policy(file) is None
    file.write_text(DELIVERED.read_text())
    os.utime(file, (0, 0))
    found = read_policy(file)
    assert found is not None
    assert found[1] > 1_000_000
