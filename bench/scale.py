"""`scale`: 1, 2, 4 and 8 dispatchers and receivers on one Postgres, and a thousand dispatchers that only wait.

`python -m bench.scale [waiting] [levels]` takes one part only.

The processes are the services under their pods' environment; the workspace double starts a run for each attempt, and
the runs report through a receiver chosen at random. A rate here is that of the machine, which all of them share; CPU
per task and connections are what carries over.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.queue import ROOT, QueueBench, line
from services.dispatcher.storage import DispatcherStorage
from shared.db.connecting import connect
from shared.db.pool import Database
from shared.runtime.replica import ReplicaHeartbeat
from tests.support.pods import KEY, KEY_ID, Pod, Pods
from tests.support.postgres import TEMPLATE
from tests.support.reporting import working
from tests.support.workspace import WorkspaceDouble

LEVELS = (1, 2, 4, 8)
TASKS = 240
AGENTS = 8
RUN_SECONDS = 1.5
WAITING = (10, 100, 1000)
WAITING_SECONDS = 20.0
HOUSEHOLD = {"claim": 1.5, "take over": 3.0, "cancel": 5.0, "heartbeat": 5.0}
"""What a dispatcher asks the database when there is nothing to do, and how often, in seconds."""


def cpu(pods: list[Pod]) -> float:
    """CPU seconds of these processes."""
    times = [psutil.Process(pod.process.pid).cpu_times() for pod in pods]
    return sum(each.user + each.system for each in times)


async def figure(pod: Pod, name: str) -> float:
    """The sum of a metric over its labels."""
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        page = (await client.get(f"{pod.ops}/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([\d.e+-]+)$", page, re.MULTILINE))


async def level(bench: QueueBench, pods: Pods, replicas: int) -> dict[str, Any]:
    """A batch through so many dispatchers and receivers."""
    await bench.reset(AGENTS, max_concurrent_tasks=20)
    await bench.owner.execute("UPDATE lockkeeper.agents SET target = 'parser'")
    await pods.start(ROOT, *["dispatcher", "callback_receiver"] * replicas, "sweeper")
    mine = list(pods.pods)
    dispatchers = [pod for pod in mine if pod.service == "dispatcher"]
    receivers = [pod for pod in mine if pod.service == "callback_receiver"]
    connections = "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'lockkeeper_%'"
    watch = await connect(bench.server.url(), name="bench-agents")
    async with working(watch, lambda: pods.address("callback_receiver"), KEY_ID, KEY, RUN_SECONDS):

        async def through(count: int) -> None:
            await bench.fill(count, AGENTS)
            while await bench.owner.fetchval("SELECT count(*) FROM lockkeeper.tasks WHERE finished_at IS NULL"):
                await asyncio.sleep(0.1)

        # A dispatcher imports the client of the Jobs API with its first call: seconds that are not the tasks'.
        while not all(warm := [await figure(pod, "lockkeeper_claimed_tasks_total") for pod in dispatchers]):
            await through(8 * replicas)
        before = cpu(dispatchers), cpu(receivers), bench.postgres_seconds()
        started = time.monotonic()
        await through(TASKS)
        seconds = time.monotonic() - started
        used = await bench.owner.fetchval(connections)
    await watch.close()
    after = cpu(dispatchers), cpu(receivers), bench.postgres_seconds()
    claimed = [
        await figure(pod, "lockkeeper_claimed_tasks_total") - earlier
        for pod, earlier in zip(dispatchers, warm, strict=True)
    ]
    claims = [await figure(pod, "lockkeeper_claim_seconds_count") for pod in dispatchers]
    spent = [await figure(pod, "lockkeeper_claim_seconds_sum") for pod in dispatchers]
    pods.stop()
    each = [(b - a) / TASKS * 1000 for a, b in zip(before, after, strict=True)]
    return {
        "tasks_per_second": round(TASKS / seconds, 1),
        "connections": used,
        "dispatcher_cpu_ms": round(each[0], 2),
        "receiver_cpu_ms": round(each[1], 2),
        "postgres_cpu_ms": round(each[2], 2),
        "claim_ms": round(sum(spent) / max(1.0, sum(claims)) * 1000, 2),
        "claims": int(sum(claims)),
        "share_least_most": [round(min(claimed) / TASKS, 2), round(max(claimed) / TASKS, 2)],
    }


async def waiting(bench: QueueBench, replicas: int) -> dict[str, Any]:
    """So many dispatchers that find nothing, played by this process over a few connections."""
    await bench.reset(200, max_concurrent_tasks=20)
    pool = Database(bench.server.url("lockkeeper_dispatcher"), name="waiting", size=20, acquire_seconds=60)
    await pool.open()
    done = 0

    async def one(number: int) -> None:
        nonlocal done
        storage = DispatcherStorage(pool, f"virtual-{number}")
        beat = ReplicaHeartbeat(pool, "dispatcher", f"virtual-{number}", dict)
        duties = {
            "claim": lambda: storage.claim_tasks(16, 30), "take over": lambda: storage.take_over_unsubmitted(8, 30, 20),
            "cancel": lambda: storage.take_cancellations(20, 5), "heartbeat": beat.run_once,
        }  # fmt: skip
        begin = time.monotonic()
        due = {name: begin + HOUSEHOLD[name] * number / replicas for name in duties}
        while (name := min(due, key=lambda each: due[each])) and due[name] < begin + WAITING_SECONDS:
            await asyncio.sleep(max(0.0, due[name] - time.monotonic()))
            await duties[name]()
            done += 1
            due[name] += HOUSEHOLD[name]

    before, started = bench.postgres_seconds(), time.monotonic()
    await asyncio.gather(*(one(number) for number in range(replicas)))
    seconds = time.monotonic() - started
    await pool.close()
    spent = bench.postgres_seconds() - before
    return {
        "statements_per_second": round(done / seconds), "postgres_cores": round(spent / seconds, 2),
        "cpu_ms_per_statement": round(spent / max(1, done) * 1000, 3), "kept_up": seconds < WAITING_SECONDS * 1.2,
    }  # fmt: skip


async def levels(bench: QueueBench) -> None:
    """A line for each number of replicas."""
    home = Path(tempfile.mkdtemp(prefix="lockkeeper-scale-"))
    double = await asyncio.to_thread(WorkspaceDouble, home / "double")
    double.fault("run", "hold", state="RUNNING")
    double.make_job("parser")
    pods = Pods(home, bench.server, TEMPLATE, double)
    try:
        for replicas in LEVELS:
            found = await level(bench, pods, replicas)
            line(f"scale_{replicas}", found.pop("tasks_per_second"), "tasks/s", **found)
    finally:
        pods.stop()
        double.stop()


async def main(parts: list[str]) -> None:
    """The named parts, or both."""
    bench = await asyncio.to_thread(QueueBench)
    await bench.open()
    try:
        if "waiting" in parts:
            for replicas in WAITING:
                found = await waiting(bench, replicas)
                line(f"waiting_{replicas}", found.pop("postgres_cores"), "cores", **found)
        if "levels" in parts:
            await levels(bench)
    finally:
        await bench.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["waiting", "levels"]))
    sys.exit(0)
