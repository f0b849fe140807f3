"""What the queue benches share: a durable Postgres, the plain-SQL limit of the same minute, and CPU accounting.

The limit is pgbench on a bare table of the same server: what no queue can pass. Rates move with the machine, so a
line says the ratio to the limit measured seconds before it, and CPU per task, which moves least.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from shared.db.connecting import connect
from tests.support.postgres import PostgresServer, binaries

ROOT = Path(__file__).resolve().parents[1]
DURABLE = {
    "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "512MB",
    "max_wal_size": "4GB", "min_wal_size": "2GB", "max_connections": "200",
    "shared_preload_libraries": "pg_stat_statements",
}  # fmt: skip

LIMIT_TABLE = """
CREATE TABLE jobs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status smallint NOT NULL DEFAULT 0,
  priority int NOT NULL DEFAULT 0, agent int NOT NULL DEFAULT 0, payload jsonb NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(), lease_expires_at timestamptz, finished_at timestamptz);
CREATE INDEX jobs_ready ON jobs (priority DESC, id) WHERE status = 0
"""
LIMIT_SCRIPT = """
WITH t AS (UPDATE jobs SET status=1, lease_expires_at=now()+interval '60s' WHERE id IN (SELECT id FROM jobs
 WHERE status=0 ORDER BY priority DESC, id FOR UPDATE SKIP LOCKED LIMIT 100) RETURNING id)
SELECT coalesce(array_agg(id),'{}') AS ids FROM t \\gset
UPDATE jobs SET status=2, finished_at=now(), lease_expires_at=NULL WHERE id = ANY(:ids);
"""


class QueueBench:
    """One server for a sitting: Lockkeeper's database and the limit's beside it."""

    def __init__(self) -> None:
        self.server = PostgresServer.create(18, **DURABLE)
        self.owner: asyncpg.Connection

    async def open(self) -> None:
        """Make both databases."""
        await self.server.make_template()
        self.owner = await connect(self.server.url(), name="bench")
        await self.owner.execute("CREATE DATABASE plain")
        await self.owner.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")
        # A server that has run for a while writes into log files that are there; a new one would fill each with zeros.
        for _ in range(64):
            await self.owner.execute("SELECT pg_switch_wal(), txid_current()")
        await self.owner.execute("CHECKPOINT")
        plain = await asyncpg.connect(self.server.url(database="plain"))
        await plain.execute(LIMIT_TABLE)
        await plain.close()

    async def close(self) -> None:
        """End the server and remove its data."""
        await self.owner.close()
        self.server.destroy()

    async def reset(self, agents: int = 1, **settings: Any) -> None:
        """Empty the tables and make `agents` agents named a0, a1 and so on."""
        await self.owner.execute(
            "TRUNCATE lockkeeper.tasks, lockkeeper.task_attempts, lockkeeper.task_events, lockkeeper.agents, "
            "lockkeeper.agent_changes, lockkeeper.token_spending"
        )
        columns = ", ".join(["name", "target", *settings])
        places = ", ".join(f"${number + 2}" for number in range(len(settings)))
        await self.owner.execute(
            f"INSERT INTO lockkeeper.agents ({columns}) SELECT 'a' || n, 'a'{', ' + places if places else ''} "
            "FROM generate_series(0, $1::int - 1) AS n",
            agents,
            *settings.values(),
        )

    async def fill(self, count: int, agents: int = 1, **columns: Any) -> None:
        """Waiting tasks, round robin over the agents, then a vacuum."""
        names = ", ".join(["agent", *columns])
        places = "".join(f", ${number + 3}" for number in range(len(columns)))
        await self.owner.execute(
            f"INSERT INTO lockkeeper.tasks ({names}) SELECT 'a' || (n % $2::int){places} "
            "FROM generate_series(1, $1::int) AS n",
            count,
            agents,
            *columns.values(),
        )
        await self.owner.execute("VACUUM ANALYZE lockkeeper.tasks")

    async def statements(self) -> float:
        """How many statements Lockkeeper's database was sent so far, but for the bench's own look."""
        asked = (
            "SELECT coalesce(sum(calls) FILTER (WHERE query NOT LIKE '%bench_looks%'), 0) FROM pg_stat_statements s "
        )
        return float(
            await self.owner.fetchval(
                f"{asked} JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database() -- bench_looks"
            )
        )

    async def limit(self, count: int = 20_000) -> float:
        """Tasks a second of plain SQL: take a hundred, finish a hundred, on two connections."""
        plain = await asyncpg.connect(self.server.url(database="plain"))
        await plain.execute("TRUNCATE jobs RESTART IDENTITY")
        await plain.execute("INSERT INTO jobs (agent) SELECT n % 200 FROM generate_series(1, $1::int) n", count)
        # Without statistics every hundred may be found by reading all: half of what can be had, in one round of three.
        await plain.execute("ANALYZE jobs")
        await plain.close()
        return 100 * await asyncio.to_thread(self.pgbench, LIMIT_SCRIPT, 2, count // 200)

    def pgbench(self, script: str, clients: int, transactions: int) -> float:
        """Transactions a second of a script on the limit's database."""
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            done = subprocess.run(
                [binaries(18) / "pgbench", "-h", "127.0.0.1", "-p", str(self.server.port), "-U", "postgres", "-n",
                 "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2)), "-t", str(transactions), "-f",
                 file.name, "plain"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
        found = re.search(r"tps = ([\d.]+)", done.stdout)
        if found is None:
            raise RuntimeError(done.stdout + done.stderr)
        return float(found[1])

    def postgres_seconds(self) -> float:
        """CPU seconds of the server and of all backends that ended or live."""
        assert self.server.process is not None
        postmaster = psutil.Process(self.server.process.pid)
        own = postmaster.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for child in postmaster.children():
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return float(total)

    async def wal_bytes(self) -> float:
        """How much was written ahead so far."""
        return float(await self.owner.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn -- bench_looks"))

    def worker(self, *arguments: object) -> subprocess.Popen[str]:
        """A worker process; it prints READY, waits for a line, and prints its account as JSON at its end."""
        return subprocess.Popen(
            [sys.executable, "-m", "bench.worker", self.server.url("{role}"), *map(str, arguments)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def line(name: str, value: float, unit: str, limit: float | None = None, **detail: Any) -> None:
    """Print one bench line."""
    ratio = None if not limit else round(value / limit, 3)
    print(json.dumps({"name": name, "value": round(value, 3), "unit": unit, "limit": limit and round(limit, 1),
                      "ratio": ratio, "detail": detail}), flush=True)  # fmt: skip
