"""Bench `callbacks`: signed result callbacks a second that one receiver on one core settles, 2xx after the commit.

The receiver runs as its own process (`python -m services.callback_receiver`), held to one core; Postgres (with
fsync) and the load share the others. Run: `python -m bench.callbacks [callbacks] [connections]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx
import orjson
import psutil
import uvloop

from deploy.local.folder import free_port
from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from shared.contract.ownership import role_of
from shared.db.connecting import connect
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[1]
KEY = "bench-secret-of-the-callbacks"
CALLBACKS = 20_000
CONNECTIONS = 96
DUPLICATES = 0.05

STAGE_TASKS = """
INSERT INTO lockkeeper.tasks (agent, status, attempt, attempt_id, lease_expires_at, locked_by, started_at, reserved_tpm)
SELECT 'parser', 'processing', 1, lockkeeper.uuid7(), lockkeeper.clock() + interval '1 hour', 'bench',
       lockkeeper.clock(), 1500 FROM generate_series(1, $1::int)
"""
STAGE_ATTEMPTS = """
INSERT INTO lockkeeper.task_attempts
       (id, task_id, agent, attempt, status, run_id, reserved_tpm, leased_at, submitted_at)
SELECT attempt_id, id, agent, 1, 'submitted', row_number() OVER (), 1500, lockkeeper.clock(), lockkeeper.clock()
  FROM lockkeeper.tasks RETURNING id
"""


@dataclass
class Load:
    """What the senders saw."""

    latencies: list[float] = field(default_factory=list)
    refused: int = 0


def request(attempt: UUID, port: int) -> bytes:
    """One signed callback, ready for the wire."""
    usage = {"model": "m", "input_tokens": 1200, "output_tokens": 180, "calls": 1, "cost": "0.0021"}
    fields = {"document_type": "invoice", "total": "129.00", "currency": "EUR", "parties": ["North Mill", "South Mill"]}
    body = orjson.dumps(
        {"result": {"fields": fields, "summary": "x" * 600}, "result_stored": False, "confidence": 0.93, "pages": 1,
         "trace_id": f"tr-{attempt}", "trace_state": "stored", "usage": [usage]}
    )  # fmt: skip
    timestamp = str(int(time.time()))
    head = (
        f"POST /callbacks/v1/attempts/{attempt}/result HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{TIMESTAMP_HEADER}: {timestamp}\r\n"
        f"{KEY_ID_HEADER}: k\r\n{SIGNATURE_HEADER}: {sign(KEY.encode(), timestamp, body)}\r\n\r\n"
    )
    return head.encode() + body


async def send_all(requests: list[bytes], port: int, load: Load) -> None:
    """One connection: the next callback leaves when the last is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while requests:
        started = time.perf_counter()
        writer.write(requests.pop())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        load.latencies.append(time.perf_counter() - started)
        load.refused += not head.startswith(b"HTTP/1.1 200")
    writer.close()


def start_receiver(database_url: str, port: int, ops_port: int) -> subprocess.Popen[bytes]:
    """The service as it runs in production, on core 0 alone."""
    environment = os.environ | {
        "LOCKKEEPER_DATABASE_URL": database_url,
        "LOCKKEEPER_PORT": str(port),
        "LOCKKEEPER_OPS_PORT": str(ops_port),
        "LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps({"k": KEY}),
    }
    process = subprocess.Popen(  # the log goes where a pipe's reader would, without one
        [sys.executable, "-m", "services.callback_receiver"], cwd=ROOT, env=environment,
        stdout=subprocess.DEVNULL, stderr=sys.stderr,
    )  # fmt: skip
    psutil.Process(process.pid).cpu_affinity([0])
    return process


async def is_ready(ops_port: int) -> None:
    """Wait until the receiver reaches its database."""
    async with httpx.AsyncClient() as client, asyncio.timeout(30):
        while True:
            try:
                if (await client.get(f"http://127.0.0.1:{ops_port}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def measure(server: PostgresServer, count: int, connections: int) -> dict[str, object]:
    """One run on a fresh database."""
    await server.clone("callbacks")
    owner = await connect(server.url(database="callbacks"), name="bench")
    await owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('parser', 'parser')")
    await owner.execute(STAGE_TASKS, count)
    attempts = [row["id"] for row in await owner.fetch(STAGE_ATTEMPTS)]
    await owner.execute("VACUUM ANALYZE")
    port, ops_port = free_port(), free_port()
    receiver = start_receiver(server.url(role_of("callback_receiver"), "callbacks"), port, ops_port)
    try:
        await is_ready(ops_port)
        requests = [request(attempt, port) for attempt in attempts]
        again = requests[: int(count * DUPLICATES)]
        load = Load()
        postgres_before = cpu_seconds(server)
        receiver_before = sum(psutil.Process(receiver.pid).cpu_times()[:2])
        own_before = time.process_time()
        started = time.perf_counter()
        queue = again + requests[::-1]
        await asyncio.gather(*(send_all(queue, port, load) for _ in range(connections)))
        seconds = time.perf_counter() - started
        own_cpu = time.process_time() - own_before
        receiver_cpu = sum(psutil.Process(receiver.pid).cpu_times()[:2]) - receiver_before
        postgres_cpu = cpu_seconds(server) - postgres_before
        await verify(owner, count)
        rounds = await round_figures(ops_port)
    finally:
        receiver.send_signal(signal.SIGTERM)
        receiver.wait(30)
        await owner.close()
        await server.drop("callbacks")
    sent = len(load.latencies)
    load.latencies.sort()
    detail = {
        "p50_ms": round(load.latencies[sent // 2] * 1e3, 1),
        "p99_ms": round(load.latencies[int(sent * 0.99)] * 1e3, 1),
        "callbacks": sent, "connections": connections, "refused": load.refused,
        "receiver_cpu_us": round(receiver_cpu / sent * 1e6), "postgres_cpu_us": round(postgres_cpu / sent * 1e6),
        "sender_cpu_us": round(own_cpu / sent * 1e6),
        **rounds,
    }  # fmt: skip
    value = round(sent / seconds)
    return {"name": "callbacks", "value": value, "unit": "1/s", "limit": None, "ratio": None, "detail": detail}


async def verify(owner: asyncpg.Connection, count: int) -> None:
    """Every task ended once."""
    done = await owner.fetchval("SELECT count(*) FROM lockkeeper.tasks WHERE status = 'completed' AND version = 2")
    if done != count:
        raise SystemExit(f"callbacks: {done} of {count} tasks were settled")


async def round_figures(ops_port: int) -> dict[str, float]:
    """What the receiver itself counted: how long a settling transaction took, and how many reports it held."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{ops_port}/metrics")).text
    figures = {
        name: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        for name in ("round_seconds_sum", "round_seconds_count", "round_reports_sum")
        if line.startswith(f"lockkeeper_settle_{name} ")
    }
    rounds = max(1.0, figures["round_seconds_count"])
    return {
        "round_ms": round(figures["round_seconds_sum"] / rounds * 1e3, 1),
        "reports_a_round": round(figures["round_reports_sum"] / rounds, 1),
    }


def cpu_seconds(server: PostgresServer) -> float:
    """What the server and its backends have used."""
    if server.process is None:
        return 0.0
    parent = psutil.Process(server.process.pid)
    total = 0.0
    for each in (parent, *parent.children(recursive=True)):
        try:
            total += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def callbacks(count: int = CALLBACKS, connections: int = CONNECTIONS) -> dict[str, object]:
    """The bench line."""
    server = PostgresServer.create(fsync="on", synchronous_commit="on", full_page_writes="on", max_wal_size="4GB")
    try:
        asyncio.run(server.make_template())
        return uvloop.run(measure(server, count, connections))
    finally:
        server.destroy()


if __name__ == "__main__":
    print(json.dumps(callbacks(*map(int, sys.argv[1:]))))
