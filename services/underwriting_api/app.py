"""Composition root of the underwriting API."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from services.underwriting_api.gateways import TemporalGateway
from services.underwriting_api.loops import CancelLoop, DecisionLoop, Delivery, StartLoop
from services.underwriting_api.routes.access import needs
from services.underwriting_api.routes.pages import PageRoutes
from services.underwriting_api.routes.runs import RunRoutes
from services.underwriting_api.settings import ApiSettings
from services.underwriting_api.storage import ApiStorage
from shared.identity.guard import Guard, Identity
from shared.identity.settings import IdentitySettings
from shared.runtime.http.edge import Edge
from shared.runtime.http.problems import handle_problems
from shared.runtime.process import Process, Service, run


def make_app(
    storage: ApiStorage, temporal: TemporalGateway, delivery: Delivery, settings: ApiSettings, identity: Identity
) -> ASGIApp:  # fmt: skip
    """The API, its OpenAPI document, and the pages."""
    app = FastAPI(
        title="Lockkeeper underwriting", version="1", docs_url=None, redoc_url=None,
        openapi_url="/api/v1/underwriting/openapi.json", summary="Loan requests in, reviewed decisions out.",
    )  # fmt: skip
    app.include_router(RunRoutes(storage, temporal, delivery, settings).router())
    app.include_router(PageRoutes().router())
    handle_problems(app)
    return Edge(Guard(app, identity, needs), max_body_bytes=settings.max_body_bytes)


async def compose(process: Process, settings: ApiSettings) -> Service:
    """Wire the HTTP app and the outboxes to the database and Temporal."""
    storage = ApiStorage(process.database)
    temporal = TemporalGateway(settings)
    delivery = Delivery(storage, temporal, settings)
    identity = Identity(IdentitySettings.load(process.settings.host), process.database)
    return Service(
        app=make_app(storage, temporal, delivery, settings, identity),
        loops=(
            StartLoop(storage, delivery, settings), DecisionLoop(storage, delivery, settings),
            CancelLoop(storage, delivery, settings),
        ),
    )  # fmt: skip


def main() -> None:
    """Run the API until it is told to stop."""
    run("underwriting_api", ApiSettings, compose)
