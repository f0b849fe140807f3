"""Composition root of the underwriting worker."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from importlib.resources import files

from prometheus_client import REGISTRY
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Interceptor, Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from services.underwriting_worker.activities.model import ModelActivities
from services.underwriting_worker.activities.records import RecordActivities
from services.underwriting_worker.activities.tools import ToolActivities
from services.underwriting_worker.activities.traces import Traces
from services.underwriting_worker.gateways import EvidenceSource, HttpSource, ModelGateway, SampleSource
from services.underwriting_worker.loops import GRACE, WorkLoop
from services.underwriting_worker.settings import WorkerSettings
from services.underwriting_worker.storage import UnderwritingStorage
from services.underwriting_worker.workflows import LoanUnderwritingWorkflow
from shared.db.pool import Database
from shared.runtime.process import Process, Service, run
from shared.vendors.temporal_metrics import SdkMetrics

PASSED_THROUGH = SandboxRestrictions.default.with_passthrough_modules("pydantic", "pydantic_core")


def release() -> str:
    """A name for exactly this code of the workflow and what it hands around.

    The SDK would compile and hash every module of the process instead, which takes seconds at each start.
    """
    digest = hashlib.sha256()
    for package in ("services.underwriting_worker", "services.underwriting_worker.policy", "shared.contract"):
        for entry in sorted(files(package).iterdir(), key=lambda each: each.name):
            if entry.name.endswith(".py"):
                digest.update(entry.name.encode() + b"\0" + entry.read_bytes())
    return digest.hexdigest()[:16]


def _deployment(settings: WorkerSettings) -> WorkerDeploymentConfig:
    """Runs wait for weeks, so a new version takes them over: what changed in the code stands behind a patch."""
    versioned = settings.worker_versioning
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion("lockkeeper-underwriting", settings.build_id or release()),
        use_worker_versioning=versioned,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE if versioned else VersioningBehavior.UNSPECIFIED,
    )


class Parts:
    """What the activities of one process share."""

    def __init__(self, database: Database, replica: str, settings: WorkerSettings) -> None:
        self.settings = settings
        self.storage = UnderwritingStorage(database, replica)
        self.model = ModelGateway(settings)
        self.traces = Traces(self.storage, settings)
        self.source: EvidenceSource = (
            HttpSource(settings.evidence_url, settings.evidence_seconds) if settings.evidence_url else SampleSource()
        )

    def worker(
        self, client: Client, *, interceptors: Sequence[Interceptor] = (), workflow: type = LoanUnderwritingWorkflow
    ) -> Worker:
        """A worker that runs our activities and this version of the workflow."""
        settings = self.settings
        tools = ToolActivities(self.storage, self.source, settings)
        model = ModelActivities(self.storage, self.model, self.traces, settings)
        records = RecordActivities(self.storage)
        return Worker(
            client,
            task_queue=settings.task_queue,
            workflows=[workflow],
            activities=[
                tools.credit_check, tools.income_verification, tools.debt_to_income_calc, tools.policy_lookup,
                model.call_model, records.begin_turn, records.record_tool_failure, records.open_review,
                records.remind_review, records.record_decision, records.note_event, records.end_run,
            ],
            workflow_runner=SandboxedWorkflowRunner(restrictions=PASSED_THROUGH),
            interceptors=interceptors,
            max_concurrent_workflow_tasks=settings.workflow_tasks,
            max_concurrent_activities=settings.activities,
            max_cached_workflows=settings.cached_workflows,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_seconds),
            graceful_shutdown_timeout=GRACE,
            deployment_config=_deployment(settings),
        )  # fmt: skip

    async def close(self) -> None:
        """Close what was opened on the way."""
        await self.traces.close()
        await self.model.close()
        await self.source.close()


async def compose(process: Process, settings: WorkerSettings, *, interceptors: Sequence[Interceptor] = ()) -> Service:
    """Wire the activities to the database, the model and the sources, and the worker to Temporal."""
    parts = Parts(process.database, process.replica, settings)
    sdk = SdkMetrics()
    REGISTRY.register(sdk)
    work = WorkLoop(partial(parts.worker, interceptors=interceptors), settings, sdk)

    async def drain() -> None:
        await work.drain()
        await parts.close()

    return Service(loops=(work,), drain=drain)


def main() -> None:
    """Run the worker until it is told to stop."""
    run("underwriting_worker", WorkerSettings, compose)
