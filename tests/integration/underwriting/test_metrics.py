from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from temporalio.client import Client

from shared.vendors.temporal import data_converter
from shared.vendors.temporal_metrics import LABELS, SdkMetrics
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting


async def test_what_the_sdk_counts_stands_beside_our_own_and_no_label_grows(
    desk: Underwriting, temporal: TemporalServer
) -> None:
    sdk = SdkMetrics()
    registry = CollectorRegistry()
    registry.register(sdk)
    desk.client = await Client.connect(temporal.address, data_converter=data_converter(), runtime=sdk.runtime)
    async with desk.worker():
        for _ in range(2):
            await desk.reaches(await desk.start(), "awaiting_review")
        page = generate_latest(registry).decode()
        series = {line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")}
        await desk.reaches(await desk.start(), "awaiting_review")
        again = generate_latest(registry).decode()
    assert "temporal_worker_task_slots_available{" in page
    assert "temporal_activity_execution_latency_seconds_bucket{" in page
    assert "temporal_request_total{" in page
    assert 'activity_type="call_model"' in page
    assert "temporal_sticky_cache_size{" in page
    more = {line.rpartition(" ")[0] for line in again.splitlines() if not line.startswith("#")} - series
    assert not {each for each in more if "call_model" in each}, "another run is no other series"
    assert "workflow_id" not in LABELS
