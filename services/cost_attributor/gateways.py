"""The outside as the cost attributor sees it: traces by attempt, and the bill by run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from uuid import UUID

import orjson
import structlog

from services.cost_attributor.messages import EndedAttempt, UsageRecord
from services.cost_attributor.metrics import SEARCH_SECONDS
from shared.vendors.billing import Row, Warehouse
from shared.vendors.mlflow_traces import IDS_PER_SEARCH, TraceFacts, TraceReader

log = structlog.get_logger()

RUNS_PER_STATEMENT = 10_000
_STATEMENT = files("services.cost_attributor").joinpath("billing.sql").read_text(encoding="utf-8")


class Traces:
    """Traces of many attempts at once. Without a tracking server there are none."""

    def __init__(self, reader: TraceReader | None) -> None:
        self._reader = reader

    async def find(self, attempts: Sequence[EndedAttempt]) -> dict[UUID, list[TraceFacts]]:
        """Every trace found for each attempt, by its client request or by the id that the agent reported."""
        found: dict[UUID, list[TraceFacts]] = defaultdict(list)
        if self._reader is None:
            return found
        by_text = {str(each.attempt_id): each.attempt_id for each in attempts}
        by_trace = {each.trace_id: each.attempt_id for each in attempts if each.trace_id}
        for first in range(0, len(attempts), IDS_PER_SEARCH):
            chunk = attempts[first : first + IDS_PER_SEARCH]
            started = time.monotonic()
            facts = await self._reader.find(
                [str(each.attempt_id) for each in chunk], [each.trace_id for each in chunk if each.trace_id]
            )
            SEARCH_SECONDS.observe(time.monotonic() - started)
            for trace in facts:
                attempt = by_text.get(trace.client_request_id or "") or by_trace.get(trace.trace_id)
                if attempt is not None:
                    found[attempt].append(trace)
        return found


class BillingTables:
    """The platform's usage and list prices, for runs of ours."""

    def __init__(self, warehouse: Warehouse, workspace_id: str | None) -> None:
        self._warehouse = warehouse
        self._workspace_id = workspace_id

    async def read_usage(self, run_ids: Sequence[int], since: datetime) -> list[UsageRecord]:
        """Every usage record of these runs, priced at its time; the runs were submitted at `since` or later.

        One statement, so at most RUNS_PER_STATEMENT runs.
        """
        if self._workspace_id is None:
            self._workspace_id = await self._warehouse.workspace_id()
        parameters = {
            "workspace_id": self._workspace_id,
            "run_ids": orjson.dumps([str(each) for each in run_ids]).decode(),
            "from_date": (since.astimezone(UTC) - timedelta(days=1)).date().isoformat(),
        }
        return [_record(row) for row in await self._warehouse.query(_STATEMENT, parameters)]


def _record(row: Row) -> UsageRecord:
    price = row["unit_price"]
    return UsageRecord(
        record_id=_text(row, "record_id"),
        run_id=int(_text(row, "run_id")),
        record_type=_text(row, "record_type"),
        sku=_text(row, "sku_name"),
        unit=_text(row, "usage_unit"),
        quantity=Decimal(_text(row, "usage_quantity")),
        unit_price=None if price is None else Decimal(price),
        currency=row["currency_code"] or "USD",
        usage_start_at=_instant(_text(row, "usage_start_time")),
        usage_end_at=_instant(_text(row, "usage_end_time")),
    )


def _text(row: Row, name: str) -> str:
    value = row[name]
    if value is None:
        raise ValueError(f"a usage record without {name}")
    return value


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
