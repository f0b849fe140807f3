"""Composition root of the cost attributor."""

from __future__ import annotations

from services.cost_attributor.gateways import BillingTables, Traces
from services.cost_attributor.loops import (
    AnswerCostRequests,
    AttributeTraces,
    RepriceLines,
    ScheduleBills,
    WatchBudgets,
)
from services.cost_attributor.settings import CostAttributorSettings
from services.cost_attributor.storage import CostStorage
from shared.contract.channels import Channel
from shared.runtime.process import Process, Service, run
from shared.vendors.billing import WAIT_SECONDS, Warehouse
from shared.vendors.mlflow_traces import TraceReader
from shared.vendors.workspace import Workspace


async def compose(process: Process, settings: CostAttributorSettings) -> Service:
    """Wire the loops to the ledger, the tracking server and the warehouse."""
    storage = CostStorage(process.database, process.replica)
    reader = TraceReader(settings.tracking_uri, settings.experiments) if settings.tracking_uri else None
    # A statement may hold its call for as long as it waits at the warehouse.
    workspace = Workspace(threads=2, retry_seconds=30, http_seconds=WAIT_SECONDS + 40)
    warehouse = Warehouse(workspace, settings.warehouse_id, statement_seconds=settings.statement_seconds)
    traces = AttributeTraces(storage, Traces(reader), process.notes, settings)
    requests = AnswerCostRequests(storage, BillingTables(warehouse, settings.workspace_id), process.notes, settings)
    repricing = RepriceLines(storage, process.notes, settings)
    schedule = [ScheduleBills(storage, settings)] if settings.bill_every_seconds else []

    async def drain() -> None:
        if reader is not None:
            reader.close()
        workspace.close()

    return Service(
        loops=(traces, requests, repricing, WatchBudgets(storage, settings), *schedule),
        hears={Channel.ATTEMPT_SETTLED: traces.hear},
        wakes={Channel.ATTEMPT_SETTLED: (traces,), Channel.COST_REQUESTED: (requests, repricing)},
        drain=drain,
    )


def main() -> None:
    """Run the cost attributor until it is told to stop."""
    run("cost_attributor", CostAttributorSettings, compose)
