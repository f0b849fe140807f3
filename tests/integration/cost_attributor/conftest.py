from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from services.cost_attributor.gateways import BillingTables, Traces
from services.cost_attributor.loops import AnswerCostRequests, AttributeTraces
from services.cost_attributor.settings import CostAttributorSettings
from services.cost_attributor.storage import CostStorage
from shared.contract.channels import Channel
from shared.contract.ids import uuid7
from shared.testing.rows import make_agent, make_tasks
from shared.vendors.billing import Warehouse
from shared.vendors.mlflow_traces import TraceReader
from shared.vendors.workspace import Workspace
from tests.conftest import TestDatabase
from tests.support.receiver import HeardNotes


@dataclass
class Attributor:
    """One replica, its loops turned by hand."""

    storage: CostStorage
    notes: HeardNotes
    traces: AttributeTraces
    requests: AnswerCostRequests

    def heard(self) -> set[str]:
        return self.notes.of(Channel.COST_CHANGED)


@pytest.fixture
async def make_attributor(database: TestDatabase) -> AsyncIterator[Callable[..., Attributor]]:
    """Replicas by name; `tracking_uri` and `warehouse` when the test has them."""
    pool = await database.open("cost_attributor")
    vendors: list[Any] = []

    def make(name: str = "a", *, tracking_uri: str = "", **own: Any) -> Attributor:
        settings = CostAttributorSettings(**{"start_seconds": 0, "warehouse_id": "w", **own})
        storage, notes = CostStorage(pool, name), HeardNotes(pool)
        reader = TraceReader(tracking_uri, settings.experiments) if tracking_uri else None
        workspace = Workspace(threads=2, retry_seconds=3, http_seconds=30)
        vendors.extend(each for each in (reader, workspace) if each is not None)
        warehouse = Warehouse(workspace, settings.warehouse_id, statement_seconds=settings.statement_seconds)
        billing = BillingTables(warehouse, settings.workspace_id)
        return Attributor(
            storage,
            notes,
            AttributeTraces(storage, Traces(reader), notes, settings),
            AnswerCostRequests(storage, billing, notes, settings),
        )

    yield make
    for vendor in vendors:
        vendor.close()
    await pool.close()


@dataclass
class Ended:
    """Ended attempts of one agent, and what was found out about them."""

    owner: asyncpg.Connection

    async def attempt(self, *, seconds_ago: float = 1, **columns: Any) -> UUID:
        (task_id,) = await make_tasks(self.owner, 1)
        values = {
            "id": uuid7(), "task_id": task_id, "agent": "parser", "attempt": 1, "status": "completed",
            "trace_state": "stored", **columns,
        }  # fmt: skip
        names = ", ".join(values)
        places = ", ".join(f"${n}" for n in range(2, len(values) + 2))
        await self.owner.execute(
            f"INSERT INTO lockkeeper.task_attempts ({names}, leased_at, submitted_at, started_at, finished_at) "
            f"SELECT {places}, at, at, at, at FROM (SELECT lockkeeper.clock() - make_interval(secs => $1::float8) AS at)",
            seconds_ago,
            *values.values(),
        )
        found: UUID = values["id"]
        return found

    async def row(self, attempt: UUID) -> asyncpg.Record:
        row = await self.owner.fetchrow("SELECT * FROM lockkeeper.task_attempts WHERE id = $1", attempt)
        assert row is not None
        return row

    async def lines(self, attempt: UUID) -> list[asyncpg.Record]:
        return list(
            await self.owner.fetch(
                "SELECT * FROM lockkeeper.cost_entries WHERE attempt_id = $1 ORDER BY source, record_id", attempt
            )
        )

    async def look_again(self) -> None:
        """Let every pending attempt be due now."""
        await self.owner.execute(
            "UPDATE lockkeeper.task_attempts SET cost_checked_at = NULL WHERE cost_status = 'pending'"
        )


@pytest.fixture
async def ended(database: TestDatabase) -> Ended:
    await make_agent(database.owner)
    return Ended(database.owner)


@pytest.fixture(autouse=True)
def _quiet_vendors() -> Iterator[None]:
    # mlflow warns while it is imported, and neither it nor the SDK closes its sessions.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
