"""Bench of the underwriter: `python -m bench.underwriting [RUNS]`.

RUNS (500) requests at once through their first turn with two workers, one of which is killed on the way; then the
record is searched for doubles. The limit is the plain Temporal sample on the same server in the same minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from temporalio.client import Client

from bench.queue import DURABLE, ROOT, line
from bench.underwriting_plain import PlainWorkflow
from shared.contract.underwriting import Pace
from shared.contract.underwriting_samples import SAMPLES
from tests.conftest import TestDatabase
from tests.support.postgres import PostgresServer
from tests.support.temporal import TemporalServer
from tests.support.underwriting import Underwriting, underwriting
from tests.support.underwriting_fixtures import POLICY

PLAIN = 200
AT_ONCE = 40
WARM = 10
"""Runs before the clock starts, so that what is measured is work and not the start of processes."""
DOUBLES = """
SELECT (SELECT count(*) FROM agent_ops.agent_tool_calls) AS tools,
       (SELECT count(DISTINCT (run_id, turn, tool)) FROM agent_ops.agent_tool_calls) AS distinct_tools,
       (SELECT count(*) FROM agent_ops.agent_messages WHERE role = 'assistant') AS answers,
       (SELECT count(DISTINCT run_id) FROM agent_ops.agent_messages WHERE role = 'assistant') AS distinct_answers,
       (SELECT count(*) FROM lockkeeper.cost_entries) AS paid,
       (SELECT count(*) FROM agent_ops.events WHERE name <> 'agent.step_recovered') AS events,
       (SELECT count(DISTINCT (run_id, name)) FROM agent_ops.events WHERE name <> 'agent.step_recovered')
           AS distinct_events,
       (SELECT count(*) FROM agent_ops.metrics) AS attempts,
       (SELECT count(*) FROM agent_ops.metrics WHERE round > 1) AS rescheduled,
       (SELECT count(*) FROM agent_ops.agent_tool_calls WHERE state <> 'succeeded') AS unfinished_tools,
       (SELECT jsonb_object_agg(outcome, n) FROM
           (SELECT outcome, count(*) AS n FROM agent_ops.metrics GROUP BY 1) o) AS outcomes
"""


async def plain(address: str, count: int) -> float:
    """Workflows a second of the sample, with two workers."""
    queue = f"plain-{uuid4()}"
    workers = await asyncio.gather(*(asyncio.to_thread(plain_worker, address, queue) for _ in range(2)))
    client = await Client.connect(address)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await client.execute_workflow(PlainWorkflow.run, "you", id=f"{queue}-{number}", task_queue=queue)

    started = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(count)))
    seconds = time.monotonic() - started
    for worker in workers:
        worker.kill()
        worker.wait()
    return count / seconds


def plain_worker(address: str, queue: str) -> subprocess.Popen[bytes]:
    """One worker of the sample, once it polls."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.underwriting_plain", address, queue], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    return worker


def work(desk: Underwriting, address: str, log: Path) -> subprocess.Popen[bytes]:
    """One worker process, as it is deployed."""
    environment = dict(os.environ) | {
        "LOCKKEEPER_DATABASE_URL": desk.database.url("underwriting_worker"), "LOCKKEEPER_DATABASE_CONNECTIONS": "10",
        "LOCKKEEPER_MODEL_URL": desk.model.url, "LOCKKEEPER_MODEL_KEY": "bench", "LOCKKEEPER_LOG_LEVEL": "warning",
        "LOCKKEEPER_UNDERWRITING_WORKER_TASK_QUEUE": desk.queue, "TEMPORAL_ADDRESS": address,
        "LOCKKEEPER_UNDERWRITING_WORKER_SEARCH_ATTRIBUTES": "false", "MLFLOW_TRACKING_URI": "",
    }  # fmt: skip
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "services.underwriting_worker"], cwd=ROOT, env=environment, stdout=output,
            stderr=output,
        )  # fmt: skip


async def waiting(desk: Underwriting) -> int:
    """Runs whose first turn is over."""
    async with desk.looking:
        return int(
            await desk.database.owner.fetchval(
                "SELECT count(*) FROM agent_ops.agent_runs WHERE state = 'awaiting_review'"
            )
        )


async def storm(desk: Underwriting, address: str, runs: int, log: Path) -> dict[str, Any]:
    """Every run at once; the second worker dies when a third of them are through."""
    workers = [work(desk, address, log) for _ in range(2)]
    for _ in range(WARM):
        await desk.start(pace=Pace())
    while await waiting(desk) < WARM:
        await asyncio.sleep(0.25)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> UUID:
        async with gate:
            return await desk.start(SAMPLES[number % len(SAMPLES)], pace=Pace())

    started = time.monotonic()
    starting = asyncio.gather(*(one(number) for number in range(runs)))
    killed_after: float | None = None
    while (done := await waiting(desk) - WARM) < runs:
        if killed_after is None and done >= runs // 3:
            workers[1].send_signal(signal.SIGKILL)
            killed_after = time.monotonic() - started
        await asyncio.sleep(0.25)
        if time.monotonic() - started > 1_800:
            raise TimeoutError(f"{done} of {runs} runs are through")
    seconds = time.monotonic() - started
    await starting
    for worker in workers:
        worker.kill()
        worker.wait()
    return {"seconds": seconds, "killed_after_seconds": killed_after}


async def bench(runs: int) -> int:
    """The whole bench; the exit status."""
    server = await asyncio.to_thread(PostgresServer.create, 18, **DURABLE)
    home = Path(tempfile.mkdtemp(prefix="lockkeeper-bench-"))
    temporal = await asyncio.to_thread(TemporalServer(home, file=True).start)
    try:
        await server.make_template()
        await server.clone("bench")
        owner = await _connect(server)
        await owner.execute(POLICY)
        limit = await plain(temporal.address, PLAIN)
        async with underwriting(TestDatabase(server, "bench", owner), temporal.address) as desk:
            found = await storm(desk, temporal.address, runs, home / "workers.log")
            counts = dict(await owner.fetchrow(DOUBLES) or {})
        await owner.close()
    finally:
        await asyncio.to_thread(temporal.stop)
        await asyncio.to_thread(server.destroy)
    doubles = sum(counts[name] - counts[f"distinct_{name}"] for name in ("tools", "answers", "events"))
    doubles += abs(counts["paid"] - runs - WARM)
    rate = runs / found["seconds"]
    detail = {**found, **counts, "runs": runs, "double_rows": doubles, "activities_per_second": rate * 7}
    line("underwriting", rate, "runs/s", limit, **detail)
    return 1 if doubles else 0


async def _connect(server: PostgresServer) -> Any:
    from shared.db.connecting import connect

    return await connect(server.url(database="bench"), name="bench")


if __name__ == "__main__":
    status = asyncio.run(bench(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
    sys.stdout.flush()
    # Temporal's client may crash in the interpreter's own end, after all is done.
    os._exit(status)
