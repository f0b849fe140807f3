"""The billing tables' rows: what our runs consumed, what others consumed, and the dated price list.

A run of a serverless job gives one row per started half hour, visible some time after its end. Beside them
stand rows that are none of ours: another team's job, a warehouse, a model endpoint, and runs of another
workspace whose run id happens to equal one of ours. Corrections can be added through the admin API.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from deploy.local.workspace.operation import JsonObject
from deploy.local.workspace.run_record import Run

SERVERLESS_SKU = "PREMIUM_JOBS_SERVERLESS_COMPUTE_US_EAST_N_VIRGINIA"
_WAREHOUSE_SKU = "PREMIUM_SERVERLESS_SQL_COMPUTE_US_EAST_N_VIRGINIA"
_SERVING_SKU = "PREMIUM_SERVERLESS_REAL_TIME_INFERENCE_US_EAST_N_VIRGINIA"
_OTHER_WORKSPACE = "4711000000000002"
_OTHER_JOB = "900000000000001"
_SLICE = timedelta(minutes=30)
_SAME_RUN_ID_ELSEWHERE = 10
_DECIMALS = 9
_NAMESPACE = uuid.UUID("6f0f3f6e-3f60-4d6c-9a55-6b1c3a1b0f10")

METADATA = (
    "cluster_id", "job_id", "warehouse_id", "instance_pool_id", "node_type", "job_run_id", "notebook_id",
    "dlt_pipeline_id", "endpoint_name", "endpoint_id", "dlt_update_id", "job_name", "notebook_path",
    "usage_policy_id", "budget_policy_id", "run_name", "source_region", "destination_region", "app_id", "app_name",
)  # fmt: skip
USAGE_COLUMNS = {
    "account_id": "VARCHAR",
    "workspace_id": "VARCHAR",
    "record_id": "VARCHAR",
    "sku_name": "VARCHAR",
    "cloud": "VARCHAR",
    "usage_start_time": "TIMESTAMP",
    "usage_end_time": "TIMESTAMP",
    "usage_date": "DATE",
    "custom_tags": "MAP(VARCHAR, VARCHAR)",
    "usage_unit": "VARCHAR",
    "usage_quantity": "DECIMAL(38,18)",
    "usage_metadata": f"STRUCT({', '.join(f'{name} VARCHAR' for name in METADATA)})",
    "identity_metadata": "STRUCT(run_as VARCHAR, created_by VARCHAR, owned_by VARCHAR)",
    "record_type": "VARCHAR",
    "ingestion_date": "DATE",
    "billing_origin_product": "VARCHAR",
    "product_features": "STRUCT(jobs_tier VARCHAR, sql_tier VARCHAR, is_serverless BOOLEAN, serving_type VARCHAR)",
    "usage_type": "VARCHAR",
}
PRICE_COLUMNS = {
    "price_start_time": "TIMESTAMP",
    "price_end_time": "TIMESTAMP",
    "account_id": "VARCHAR",
    "sku_name": "VARCHAR",
    "cloud": "VARCHAR",
    "currency_code": "VARCHAR",
    "usage_unit": "VARCHAR",
    "pricing": (
        'STRUCT("default" DECIMAL(38,18), promotional STRUCT("default" DECIMAL(38,18)),'
        ' effective_list STRUCT("default" DECIMAL(38,18)))'
    ),
}
# SKU, price, first day, first day of the next price: a price changes while the old one still prices old usage.
_PRICES = (
    (SERVERLESS_SKU, "0.39", datetime(2023, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)),
    (SERVERLESS_SKU, "0.35", datetime(2025, 1, 1, tzinfo=UTC), None),
    (_WAREHOUSE_SKU, "0.70", datetime(2023, 1, 1, tzinfo=UTC), None),
    (_SERVING_SKU, "0.07", datetime(2023, 1, 1, tzinfo=UTC), None),
)


class Ledger:
    """Makes the rows of the billing tables for one workspace."""

    def __init__(self, *, account_id: str, workspace_id: str, cloud: str, dbu_per_hour: float) -> None:
        self._account_id = account_id
        self._workspace_id = workspace_id
        self._cloud = cloud
        self._dbu_per_hour = dbu_per_hour

    def of_run(self, run: Run) -> Iterator[JsonObject]:
        """The rows of one ended run; none when it never began."""
        if run.executing_time is None or run.end_time is None:
            return
        begin, end = _instant(run.executing_time), _instant(max(run.end_time, run.executing_time + 1))
        metadata = {
            "job_id": str(run.job_id),
            "job_run_id": str(run.run_id),
            # One-time runs have no saved job, so no name either.
            "job_name": run.run_name if run.run_type == "JOB_RUN" else None,
        }
        for number, (start, until) in enumerate(_slices(begin, end)):
            hours = (until - start).total_seconds() / 3600
            row = self._row(
                f"{run.run_id}/{number}",
                (start, until),
                sku_name=SERVERLESS_SKU,
                usage_quantity=hours * self._dbu_per_hour,
                usage_metadata=metadata,
                custom_tags=run.tags,
                run_as=run.creator,
            )
            yield row
            if run.run_id % _SAME_RUN_ID_ELSEWHERE == 0:
                other = {**row["usage_metadata"], "job_id": _OTHER_JOB, "job_name": "nightly-ingest"}
                yield {**row, "record_id": _record_id(f"elsewhere/{run.run_id}/{number}"),
                       "workspace_id": _OTHER_WORKSPACE, "usage_metadata": other}  # fmt: skip

    def of_others(self, until: datetime, days: int = 3) -> Iterator[JsonObject]:
        """What other applications of the account consumed, the same in every call."""
        last = until.replace(minute=0, second=0, microsecond=0)
        for back in range(days * 24, 0, -6):
            hour = last - timedelta(hours=back)
            span = (hour, hour + timedelta(hours=1))
            key = hour.isoformat()
            yield self._row(
                f"ingest/{key}", span, sku_name=SERVERLESS_SKU, usage_quantity=2.5, run_as="data-platform",
                usage_metadata={"job_id": _OTHER_JOB, "job_run_id": str(900_000_000_000_000 + hour.toordinal()),
                                "job_name": "nightly-ingest"},
                custom_tags={"team": "data-platform"},
            )  # fmt: skip
            yield self._row(
                f"warehouse/{key}", span, sku_name=_WAREHOUSE_SKU, usage_quantity=4.0, run_as="analysts",
                usage_metadata={"warehouse_id": "a1b2c3d4e5f60718"}, product="SQL",
            )  # fmt: skip
            yield self._row(
                f"serving/{key}", span, sku_name=_SERVING_SKU, usage_quantity=12.0, run_as="chat-app",
                usage_metadata={"endpoint_name": "support-chat"}, product="MODEL_SERVING", usage_type="TOKEN",
            )  # fmt: skip

    def prices(self) -> Iterator[JsonObject]:
        """The rows of ``system.billing.list_prices``."""
        for sku, price, start, end in _PRICES:
            tag = {"default": price}
            yield {
                "price_start_time": _text(start),
                "price_end_time": None if end is None else _text(end),
                "account_id": self._account_id,
                "sku_name": sku,
                "cloud": self._cloud,
                "currency_code": "USD",
                "usage_unit": "DBU",
                "pricing": {**tag, "promotional": {"default": None}, "effective_list": tag},
            }

    def completed(self, given: JsonObject) -> JsonObject:
        """A row somebody adds by hand, with everything they did not say filled in."""
        now = datetime.now(UTC)
        filled = self._row(
            uuid.uuid4().hex, (now - timedelta(minutes=1), now), sku_name=SERVERLESS_SKU, usage_quantity=0.0,
            usage_metadata=given.get("usage_metadata") or {}, run_as="",
        )  # fmt: skip
        return {**filled, **given, "usage_metadata": filled["usage_metadata"]}

    def _row(
        self,
        key: str,
        span: tuple[datetime, datetime],
        *,
        sku_name: str,
        usage_quantity: float,
        usage_metadata: dict[str, Any],
        run_as: str,
        custom_tags: dict[str, str] | None = None,
        product: str = "JOBS",
        usage_type: str = "COMPUTE_TIME",
    ) -> JsonObject:
        start, end = span
        return {
            "account_id": self._account_id,
            "workspace_id": self._workspace_id,
            "record_id": _record_id(key),
            "sku_name": sku_name,
            "cloud": self._cloud,
            "usage_start_time": _text(start),
            "usage_end_time": _text(end),
            "usage_date": start.date().isoformat(),
            "custom_tags": custom_tags or {},
            "usage_unit": "DBU",
            "usage_quantity": f"{usage_quantity:.{_DECIMALS}f}",
            "usage_metadata": {name: usage_metadata.get(name) for name in METADATA},
            "identity_metadata": {"run_as": run_as, "created_by": None, "owned_by": None},
            "record_type": "ORIGINAL",
            "ingestion_date": end.date().isoformat(),
            "billing_origin_product": product,
            "product_features": {"is_serverless": True},
            "usage_type": usage_type,
        }


def _slices(begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    start = begin
    while start < end:
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
        until = min(end, midnight + ((start - midnight) // _SLICE + 1) * _SLICE)
        yield start, until
        start = until


def _record_id(key: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, key))


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d %H:%M:%S.%f")
