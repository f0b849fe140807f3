from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import TestDatabase
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting, underwriting

POLICY = """
INSERT INTO agent_policy.underwriting_policy_limits
       (purpose, policy_name, policy_version, minimum_score, automatic_approval_dti, hard_reject_score, hard_reject_dti)
SELECT p, 'retail lending', '2026-04', 660, 36, 580, 45
  FROM unnest(ARRAY['home_purchase', 'home_improvement', 'auto', 'debt_consolidation', 'personal', 'small_business']) p
"""


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    server = TemporalServer(tmp_path_factory.mktemp("temporal")).start()
    yield server
    server.stop()


@pytest.fixture
async def desk(database: TestDatabase, temporal: TemporalServer) -> AsyncIterator[Underwriting]:
    """An underwriter with a policy and no worker yet."""
    await database.owner.execute(POLICY)
    async with underwriting(database, temporal.address) as made:
        yield made
