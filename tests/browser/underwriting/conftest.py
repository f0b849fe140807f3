from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.underwriting_api.app import make_app
from services.underwriting_api.gateways import TemporalGateway
from services.underwriting_api.loops import Delivery
from services.underwriting_api.settings import ApiSettings
from services.underwriting_api.storage import ApiStorage
from shared.identity.guard import Identity
from shared.identity.settings import IdentitySettings
from shared.runtime.http import HttpServer
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting
from tests.support.underwriting_fixtures import desk, temporal

__all__ = ["desk", "temporal"]


@pytest.fixture
async def site(desk: Underwriting, temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of the pages over the desk's database and server."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.address)
    settings = ApiSettings(task_queue=desk.queue, search_attributes=False)
    pool = await desk.database.open("underwriting_api")
    storage, gateway = ApiStorage(pool), TemporalGateway(settings)
    identity = Identity(IdentitySettings(), pool)
    app = make_app(storage, gateway, Delivery(storage, gateway, settings), settings, identity)
    server = HttpServer(app, "127.0.0.1", 0, grace_seconds=1)
    await server.open()
    yield f"http://127.0.0.1:{server.port}"
    await server.close()
    await pool.close()
