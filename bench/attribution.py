"""Bench `attribution`: finished attempts a minute that one attributor attributes from a real MLflow tracking server.

The traces lie in an MLflow server (sqlite, one worker) before the clock runs; the attributor's loop is the real one, in
this process. `limit` is what the search alone gives: the same ids looked up, nothing written. Run:
`python -m bench.attribution [attempts]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

from services.cost_attributor.gateways import Traces
from services.cost_attributor.loops import AttributeTraces
from services.cost_attributor.settings import CostAttributorSettings
from services.cost_attributor.storage import CostStorage
from shared.contract.ownership import role_of
from shared.db.connecting import connect
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.vendors.mlflow_traces import IDS_PER_SEARCH, TraceReader
from tests.support.mlflow_server import MlflowServer
from tests.support.postgres import PostgresServer

ATTEMPTS = 2_000
EXPERIMENT = "bench"
USAGE = {"input_tokens": 1_200, "output_tokens": 180, "cache_read_input_tokens": 300}

STAGE = """
WITH made AS (
    INSERT INTO lockkeeper.tasks (agent, status, attempt, finished_at)
    SELECT 'parser', 'completed', 1, lockkeeper.clock() FROM generate_series(1, $1::int) RETURNING id
)
INSERT INTO lockkeeper.task_attempts
       (id, task_id, agent, attempt, status, run_id, leased_at, submitted_at, started_at, finished_at, trace_state,
        usage)
SELECT lockkeeper.uuid7(), id, 'parser', 1, 'completed', row_number() OVER (), now(), now(), now(), now(), 'stored',
       '[{"model": "gpt-5-mini", "input_tokens": 900, "output_tokens": 180, "cache_read_tokens": 300, "calls": 1}]'
  FROM made RETURNING id
"""


def fill(tracking: MlflowServer, attempts: list[UUID]) -> None:
    """One trace for each attempt, every second one without a cost of its own."""
    place = tracking.experiment(EXPERIMENT)
    with ThreadPoolExecutor(8) as pool:
        for number, attempt in enumerate(attempts):
            facts: dict[str, Any] = {"usage": USAGE, **({"cost": {"total_cost": 0.0021}} if number % 2 else {})}
            pool.submit(tracking.trace, place, attempt, **facts)


async def measure(server: PostgresServer, tracking: MlflowServer, count: int) -> dict[str, Any]:
    """Stage, look up without writing, then attribute; the line that the bench prints."""
    owner = await connect(server.url(), name="bench")
    attempts = [row["id"] for row in await owner.fetch(STAGE, count)]
    await asyncio.to_thread(fill, tracking, attempts)
    reader = TraceReader(tracking.url, [EXPERIMENT])
    await reader.find([str(attempts[0])], [])
    started = time.perf_counter()
    for first in range(0, count, IDS_PER_SEARCH):
        await reader.find([str(each) for each in attempts[first : first + IDS_PER_SEARCH]], [])
    searching = time.perf_counter() - started
    pool = Database(server.url(role_of("cost_attributor")), name="bench", size=2)
    await pool.open()
    settings = CostAttributorSettings(start_seconds=0)
    loop = AttributeTraces(CostStorage(pool, "bench"), Traces(reader), Notes(pool), settings)
    started = time.perf_counter()
    while await loop.run_once():
        pass
    seconds = time.perf_counter() - started
    done = await owner.fetchval("SELECT count(*) FROM lockkeeper.task_attempts WHERE cost_status = 'final'")
    await pool.close()
    await owner.close()
    reader.close()
    if done != count:
        raise SystemExit(f"{done} of {count} attempts were attributed")
    value, limit = count / seconds * 60, count / searching * 60
    searches = -(-count // IDS_PER_SEARCH)
    detail = {
        "attempts": count,
        "seconds": round(seconds, 2),
        "searches_a_second": round(searches / seconds, 2),
        "bound_by": "the tracking server's search" if searching > seconds / 2 else "the ledger's writes",
        # Databricks allows 7 searches a second.
        "attempts_a_minute_at_the_documented_limit": 7 * IDS_PER_SEARCH * 60,
    }
    return {
        "name": "attribution", "value": round(value), "unit": "attempts/min", "limit": round(limit),
        "ratio": round(value / limit, 3), "detail": detail,
    }  # fmt: skip


def main() -> None:
    """Start what it needs, measure, print one line."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ATTEMPTS
    server = PostgresServer.create(18, fsync="on", synchronous_commit="on")
    with tempfile.TemporaryDirectory(prefix="lockkeeper-bench-") as home:
        tracking = MlflowServer(Path(home))
        try:
            asyncio.run(server.make_template())
            print(json.dumps(asyncio.run(measure(server, tracking, count))))
        finally:
            tracking.stop()
            server.destroy()


if __name__ == "__main__":
    main()
