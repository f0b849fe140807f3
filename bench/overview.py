"""How quickly the console answers with ten million tasks in the table: totals, charts, and pages however deep.

The rows are generated (30 days, 40 agents, 200 customers, one attempt each, a thousand running, 50,000 waiting), and
counted by the statement that the console counts with.
`LOCKKEEPER_BENCH_ROWS` makes fewer. Needs about 12 GB of disk and a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx

from bench.queue import DURABLE
from services.console.app import make_app
from services.console.gateways.elsewhere import Elsewhere
from services.console.gateways.pages import Files
from services.console.settings import ConsoleSettings
from services.console.storage.totals import TotalsStorage
from shared.contract.ownership import role_of
from shared.db.connecting import connect
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.identity.guard import Identity
from shared.identity.settings import IdentitySettings
from shared.runtime.http import HttpServer
from shared.vendors.workspace import Workspace
from tests.support.postgres import PostgresServer

ROWS = int(os.environ.get("LOCKKEEPER_BENCH_ROWS", "10000000"))
SLICE = 500_000
COUNTED_AT_ONCE = 100_000
ROUNDS = 15
LIMIT_MS = 150.0

INDEXES = """
SELECT indexdef, format('DROP INDEX %I.%I', schemaname, indexname) AS away FROM pg_indexes
 WHERE schemaname = 'lockkeeper' AND tablename IN ('tasks', 'task_attempts')
   AND indexname NOT LIKE '%_pkey' AND indexname NOT LIKE '%_key'
"""
TASKS = """
INSERT INTO lockkeeper.tasks (id, agent, customer, status, attempt, created_at, available_at, started_at, finished_at,
                              lease_expires_at, confidence, version)
SELECT overlay(replace(gen_random_uuid()::text, '-', '')
               PLACING lpad(to_hex((extract(epoch FROM c.at) * 1000)::bigint), 12, '0') || '7' FROM 1)::uuid,
       'a' || n % 40, CASE WHEN n % 11 > 0 THEN 'customer ' || n % 199 END, s.status, (s.status <> 'enqueued')::int,
       c.at, c.at,
       CASE WHEN s.status <> 'enqueued' THEN c.at + interval '2 seconds' END,
       CASE WHEN s.status IN ('completed', 'failed', 'cancelled')
            THEN c.at + (3 + n % 977 * n % 31) * interval '0.11 s' END,
       CASE WHEN s.status = 'processing' THEN now() + interval '1 hour' END, (50 + n % 50) / 100.0, 3
  FROM generate_series($1::bigint, $2::bigint) n
 CROSS JOIN LATERAL (SELECT now() - n * (interval '30 days' / $3::bigint) AS at) c
 CROSS JOIN LATERAL (SELECT CASE WHEN n <= 50000 THEN 'enqueued' WHEN n <= 51000 THEN 'processing'
                                 WHEN n % 50 = 0 THEN 'failed' WHEN n % 200 = 1 THEN 'cancelled'
                                 ELSE 'completed' END AS status) s
"""
ATTEMPTS = """
INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at, pages, input_tokens,
                                      output_tokens, llm_cost, compute_cost, cost_status)
SELECT gen_random_uuid(), id, agent, 1, CASE status WHEN 'processing' THEN 'running' ELSE status END, started_at,
       finished_at, 4, CASE WHEN status <> 'processing' THEN 5200 END, CASE WHEN status <> 'processing' THEN 640 END,
       CASE WHEN status <> 'processing' THEN 0.0042 END,
       CASE WHEN status <> 'processing' AND created_at < now() - interval '1 day' THEN 0.0011 END, 'final'
  FROM lockkeeper.tasks WHERE status <> 'enqueued'
"""


async def fill(server: PostgresServer) -> float:
    """Make the rows; how many tasks a second were counted."""
    owner = await connect(server.url(), name="bench", statement_seconds=None)
    await owner.execute("INSERT INTO lockkeeper.agents (name, target, max_concurrent_tasks, max_tpm) "
                        "SELECT 'a' || n, 'job', 50, 500000 FROM generate_series(0, 39) n")  # fmt: skip
    kept = await owner.fetch(INDEXES)
    for row in kept:
        await owner.execute(row["away"])
    for first in range(1, ROWS + 1, SLICE):
        await owner.execute(TASKS, first, min(first + SLICE - 1, ROWS), ROWS)
        print(f"overview_10m: {min(first + SLICE - 1, ROWS):,} tasks", file=sys.stderr, flush=True)
    await owner.execute(ATTEMPTS)
    await owner.execute("SET maintenance_work_mem = '1GB'")
    for row in kept:
        await owner.execute(row["indexdef"])
    await owner.execute("VACUUM ANALYZE lockkeeper.tasks")
    await owner.execute("VACUUM ANALYZE lockkeeper.task_attempts")
    print("overview_10m: indexed", file=sys.stderr, flush=True)
    pool = Database(server.url(role_of("console")), name="bench-count", size=1, statement_seconds=300)
    await pool.open()
    storage = TotalsStorage(pool)
    walked, started = UUID(int=0), time.perf_counter()
    while ids := await _count(storage, walked):
        walked = ids[-1]
    rate = ROWS / (time.perf_counter() - started)
    await pool.close()
    for table in ("task_counted", "task_totals"):
        await owner.execute(f"VACUUM ANALYZE lockkeeper.{table}")
    counted = await owner.fetchval("SELECT count(*) FROM lockkeeper.task_counted")
    assert counted == ROWS, f"{counted} of {ROWS} counted"
    await owner.close()
    return rate


async def _count(storage: TotalsStorage, after: UUID) -> list[UUID]:
    async with storage.database.transaction() as connection:
        await connection.execute("SET LOCAL work_mem = '256MB'")
        ids = await storage.list_walk(connection, after, COUNTED_AT_ONCE)
        await storage.count_tasks(connection, ids)
    return ids


async def timed(http: httpx.AsyncClient, path: str) -> tuple[dict[str, float], Any]:
    """Median and worst of some requests in milliseconds, and the last answer."""
    took = []
    answer = None
    for _ in range(ROUNDS):
        started = time.perf_counter()
        answer = await http.get(path)
        answer.raise_for_status()
        took.append((time.perf_counter() - started) * 1000)
    assert answer is not None
    is_json = "json" in answer.headers["content-type"]
    body = answer.json() if is_json else None
    return {"median_ms": round(statistics.median(took), 1), "worst_ms": round(max(took), 1)}, body


async def measure(server: PostgresServer) -> dict[str, Any]:
    """What the console answers, and how quickly."""
    pool = Database(server.url(role_of("console")), name="bench-console", size=5)
    await pool.open()
    notes = Notes(pool)
    await notes.open()
    workspace = Workspace(threads=1, retry_seconds=1, http_seconds=5)
    files = Files.over(workspace)
    identity = Identity(IdentitySettings(), pool)
    app = make_app(ConsoleSettings(), pool, notes, files, Elsewhere(workspace, ""), identity=identity)
    http_server = HttpServer(app, "127.0.0.1", 0, grace_seconds=1)
    await http_server.open()
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    week = f"from={(hour - timedelta(days=7)).isoformat().replace('+', '%2B')}"
    odd = f"from={(hour - timedelta(days=9, minutes=23)).isoformat().replace('+', '%2B')}"
    middle = await pool.fetchrow(
        "SELECT created_at, id FROM lockkeeper.tasks WHERE created_at < now() - interval '20 days' "
        "ORDER BY created_at DESC LIMIT 1"
    )
    assert middle is not None
    detail: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_server.port}", timeout=120, trust_env=False) as http:
        first = (await http.get("/api/v1/tasks?limit=50")).json()["next_cursor"]
        asked = {
            "summary_all": "/api/v1/summary", "summary_week": f"/api/v1/summary?{week}",
            "summary_odd_minute": f"/api/v1/summary?{odd}", "summary_agent": f"/api/v1/summary?{week}&agent=a7",
            "summary_customer": f"/api/v1/summary?{week}&customer=customer%207",
            "summary_failed": "/api/v1/summary?status=failed", "charts_month": "/charts?range=30d",
            "page_first": "/api/v1/tasks?limit=50", "page_next": f"/api/v1/tasks?limit=50&cursor={first}",
            "page_deep": f"/api/v1/tasks?limit=50&to={middle['created_at'].isoformat().replace('+', '%2B')}",
            "page_failed": "/api/v1/tasks?limit=50&status=failed", "agents": "/api/v1/agents",
        }  # fmt: skip
        for name, path in asked.items():
            detail[name], body = await timed(http, path)
            if name == "summary_all":
                assert body["total"] == ROWS, body
    await http_server.close()
    await files.close()
    await notes.close()
    await pool.close()
    workspace.close()
    return detail


async def bench(server: PostgresServer) -> None:
    """One line."""
    rate = await fill(server)
    detail = await measure(server)
    worst = max(each["median_ms"] for name, each in detail.items() if name.startswith(("summary", "page")))
    line = {
        "name": "overview_10m", "value": detail["summary_all"]["median_ms"], "unit": "ms", "limit": LIMIT_MS,
        "ratio": round(detail["summary_all"]["median_ms"] / LIMIT_MS, 3),
        "detail": {"rows": ROWS, "worst_median_ms": worst, "counted_per_second": round(rate), **detail},
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def main() -> None:
    """A server for the bench, and away with it."""
    server = PostgresServer.create(
        18, **{**DURABLE, "fsync": "off", "synchronous_commit": "off", "max_wal_size": "8GB"}
    )
    try:
        asyncio.run(server.make_template())
        asyncio.run(bench(server))
    finally:
        server.destroy()


if __name__ == "__main__":
    main()
