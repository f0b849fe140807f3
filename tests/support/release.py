"""The chart in the cluster, and the work of its queue: agents outside carry it, every task of it is done once."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from shared.db.invariants import violations
from shared.testing.rows import make_agent
from tests.support.cluster import NAMESPACE, Cluster
from tests.support.postgres import PostgresServer
from tests.support.reporting import working
from tests.support.workspace import WorkspaceDouble

KEY_ID, KEY = "test", "a-key-of-the-cluster-test"


def install(cluster: Cluster, queue: PostgresServer, double: WorkspaceDouble, **labels: str) -> None:
    repository, tag = cluster.image.split(":")
    values: dict[str, Any] = {
        "image": {"repository": repository, "tag": tag},
        "database": {
            "host": cluster.gateway(), "port": queue.port, "name": "lockkeeper", "sslmode": "disable",
            "credentials": "password",
        },
        "databricks": {"host": double.url},
        "mlflow": {"trackingUri": ""},
        "podLabels": labels,
        "services": {
            # One call at a time, each half a second long: one replica is soon too few.
            "dispatcher": {
                "autoscaling": {"by": "keda", "min": 1, "max": 4, "target": 30, "stabilizationSeconds": 10},
                "env": {"LOCKKEEPER_DISPATCHER_SUBMIT_THREADS": "1", "LOCKKEEPER_DISPATCHER_CLAIM_BATCH": "4"},
            },
            "sweeper": {"env": {"LOCKKEEPER_SWEEPER_GAUGES_SECONDS": "2"}},
        },
    }  # fmt: skip
    command = ["helm", "upgrade", "--install", "lockkeeper", "deploy/chart", f"--namespace={NAMESPACE}"]
    cluster.run(*command, "--values=-", "--wait", "--timeout=150s", stdin=json.dumps(values))


async def with_agent(queue: PostgresServer, database: str = "lockkeeper") -> None:
    owner = await asyncpg.connect(queue.url(database=database))
    await make_agent(owner, max_concurrent_tasks=400)
    await owner.close()


@asynccontextmanager
async def agents(cluster: Cluster, queue: PostgresServer, database: str = "lockkeeper") -> AsyncIterator[Counter[int]]:
    """Yields how the agents' reports are answered."""
    address = cluster.get("service", "lockkeeper-callback-receiver")["spec"]["clusterIP"]
    owner = await asyncpg.connect(queue.url(database=database))
    async with working(owner, lambda: f"http://{address}", KEY_ID, KEY) as them:
        yield them.answers
    await owner.close()


async def settled(owner: asyncpg.Connection) -> bool:
    return bool(await owner.fetchval("SELECT count(*) = 0 FROM lockkeeper.tasks WHERE finished_at IS NULL"))


async def finished(owner: asyncpg.Connection, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not await settled(owner):
        assert time.monotonic() < end
        await asyncio.sleep(0.5)


async def done_once(owner: asyncpg.Connection, double: WorkspaceDouble) -> None:
    """Every task ended well, by its first attempt, and no run was started twice."""
    told = await owner.fetch("SELECT status, attempt, count(*) FROM lockkeeper.tasks GROUP BY 1, 2")
    assert [(row["status"], row["attempt"]) for row in told] == [("completed", 1)]
    assert await owner.fetchval("SELECT count(*) = count(DISTINCT run_id) FROM lockkeeper.task_attempts")
    assert len(double.runs()) == told[0]["count"]
    assert await violations(owner) == []
