"""Fixtures of the underwriter's tests; a tier's conftest takes them by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from services.underwriting_api.app import make_app
from services.underwriting_api.gateways import TemporalGateway
from services.underwriting_api.loops import Delivery
from services.underwriting_api.settings import ApiSettings
from services.underwriting_api.storage import ApiStorage
from shared.identity.guard import Identity
from shared.identity.settings import IdentitySettings
from tests.conftest import TestDatabase
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Api, Underwriting, underwriting

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


@pytest.fixture
async def api(desk: Underwriting, temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """The API over the same database and server."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.address)
    settings = ApiSettings(task_queue=desk.queue, search_attributes=False, answer_seconds=3)
    pool = await desk.database.open("underwriting_api")
    storage, gateway = ApiStorage(pool), TemporalGateway(settings)
    delivery = Delivery(storage, gateway, settings)
    app = make_app(storage, gateway, delivery, settings, Identity(IdentitySettings(mode="open"), pool))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://desk", timeout=30) as http:
        yield Api(http, storage, gateway, delivery, settings)
    await pool.close()
