"""Composition root of the console."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from services.console.gateways.elsewhere import Elsewhere
from services.console.gateways.pages import Files
from services.console.loops import Count, WarmUp
from services.console.routes.access import needs
from services.console.routes.actions import Operator
from services.console.routes.agents import AgentRoutes
from services.console.routes.charts import ChartRoutes
from services.console.routes.costs import CostRoutes
from services.console.routes.customers import CustomerRoutes
from services.console.routes.documents import DocumentRoutes, Intake
from services.console.routes.elsewhere import ElsewhereRoutes
from services.console.routes.enqueueing import Enqueuer
from services.console.routes.given import API
from services.console.routes.ledger import LedgerRoutes
from services.console.routes.operating import OperatingRoutes
from services.console.routes.pages import PageRoutes
from services.console.routes.prices import PriceRoutes
from services.console.routes.reference import ReferenceRoutes
from services.console.routes.system import SystemRoutes
from services.console.routes.tasks import TaskRoutes
from services.console.routes.viewing import ViewingRoutes
from services.console.settings import ConsoleSettings
from services.console.storage.agents import AgentStorage
from services.console.storage.costs import CostStorage
from services.console.storage.customers import CustomerStorage
from services.console.storage.documents import DocumentStorage
from services.console.storage.ledger import LedgerStorage
from services.console.storage.operating import OperatingStorage
from services.console.storage.prices import PriceStorage
from services.console.storage.system import SystemStorage
from services.console.storage.tasks import TaskStorage
from services.console.storage.totals import TotalsStorage
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.identity.guard import Guard, Identity
from shared.identity.settings import IdentitySettings
from shared.runtime.http.edge import Edge
from shared.runtime.http.problems import handle_problems
from shared.runtime.process import Process, Service, run
from shared.vendors.workspace import Workspace


def make_app(
    settings: ConsoleSettings, database: Database, notes: Notes, files: Files, elsewhere: Elsewhere, *,
    identity: Identity,
) -> ASGIApp:  # fmt: skip
    """The console's HTTP: the API, its reference, and the pages."""
    tasks = TaskStorage(database)
    operating = OperatingStorage(database)
    documents = DocumentStorage(database, duplicate_seconds=settings.duplicate_seconds)
    ledger = LedgerStorage(database)
    pages = PageRoutes(settings)
    app = FastAPI(
        title="Lockkeeper", version="1", openapi_url=f"{API}/openapi.json", docs_url=None, redoc_url=None,
        summary="Documents and tasks in, structured results and costs out.", max_body_size=settings.max_body_bytes,
    )  # fmt: skip
    app.state.settings = settings
    routers: list[APIRouter] = [
        DocumentRoutes(Intake(documents, files, settings), documents, files.volumes, settings).router(),
        ViewingRoutes(documents, files.viewer).router(),
        TaskRoutes(tasks, Enqueuer(tasks, notes)).router(),
        OperatingRoutes(tasks, Operator(operating, notes)).router(),
        AgentRoutes(AgentStorage(database), operating, notes).router(),
        CustomerRoutes(CustomerStorage(database), operating, notes).router(),
        CostRoutes(CostStorage(database), ledger, tasks, notes).router(),
        LedgerRoutes(ledger, pages.templates).router(),
        PriceRoutes(PriceStorage(database), operating, notes).router(),
        SystemRoutes(SystemStorage(database), operating).router(),
    ]
    for router in routers:
        app.include_router(router)
    app.include_router(ReferenceRoutes(app).router())
    app.include_router(pages.router())
    app.include_router(ElsewhereRoutes(tasks, elsewhere, pages.templates).router())
    app.include_router(ChartRoutes(TotalsStorage(database), pages.templates).router())
    handle_problems(app)
    return Edge(
        Guard(app, identity, needs), max_body_bytes=settings.max_body_bytes,
        other_limits={f"{API}/documents": settings.max_upload_bytes}, allowed_hosts=settings.allowed_hosts,
    )  # fmt: skip


async def compose(process: Process, settings: ConsoleSettings) -> Service:
    """Wire the HTTP app to the database and the Volume."""
    workspace = Workspace(
        threads=settings.upload_threads + 4, retry_seconds=settings.retry_seconds,
        http_seconds=settings.transfer_seconds,
    )  # fmt: skip
    files = Files.over(workspace, count_seconds=settings.page_count_seconds, draw_seconds=settings.page_draw_seconds)

    async def drain() -> None:
        workspace.close()
        await files.close()

    identity = Identity(IdentitySettings.load(process.settings.host), process.database)
    elsewhere = Elsewhere(workspace, settings.tracking_uri)
    app = make_app(settings, process.database, process.notes, files, elsewhere, identity=identity)
    count = Count(TotalsStorage(process.database))
    return Service(loops=(WarmUp(workspace), count), app=app, drain=drain)


def main() -> None:
    """Run the console until it is told to stop."""
    run("console", ConsoleSettings, compose)
