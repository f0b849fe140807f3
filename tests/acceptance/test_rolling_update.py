"""Every service of the version before is replaced by this one while a batch is under way."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx
import pytest

from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from shared.contract.ownership import ROLES, role_of
from shared.db.invariants import violations
from shared.testing.rows import make_agent, make_tasks
from tests.support.pods import KEY, Pods
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.statements import ROOT
from tests.support.workspace import WorkspaceDouble

pytestmark = pytest.mark.timeout(900)
TASKS = int(os.environ.get("LOCKKEEPER_TEST_ROLL", "150"))
"""`LOCKKEEPER_TEST_ROLL=1000` is the long form, which also goes back to the version before."""
AT_ONCE = 30
RUN_SECONDS = 1.5
SERVICES = (
    "callback_receiver", "callback_receiver", "dispatcher", "dispatcher", "sweeper", "cost_attributor", "notifier",
    "console",
)  # fmt: skip


def version_before(folder: Path) -> Path:
    """The code as it was before the schema last changed; without history, the code as it is."""
    told = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--", "shared/contract/schema"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    made = subprocess.run(
        ["git", "archive", f"{told.stdout.strip()}~1"], cwd=ROOT, capture_output=True, check=False
    )  # fmt: skip
    if made.returncode != 0:
        return ROOT
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=made.stdout, check=True)
    return folder


@dataclass
class Agents:
    """The code of runs: each reports its result after a while, and keeps how it was answered."""

    http: httpx.AsyncClient
    answers: Counter[int] = field(default_factory=Counter)
    took: list[tuple[float, float]] = field(default_factory=list)

    async def report(self, pods: Pods, attempt: str) -> None:
        await asyncio.sleep(RUN_SECONDS)
        body = b'{"result": {"kind": "invoice"}, "confidence": 0.9, "pages": 3}'
        for _ in range(20):
            timestamp = str(int(time.time()))
            headers = {
                TIMESTAMP_HEADER: timestamp, KEY_ID_HEADER: "pods", SIGNATURE_HEADER: sign(KEY.encode(), timestamp, body),
            }  # fmt: skip
            url = f"{pods.address('callback_receiver')}/callbacks/v1/attempts/{attempt}/result"
            began = time.monotonic()
            try:
                status = (await self.http.post(url, content=body, headers=headers)).status_code
            except httpx.HTTPError:
                status = 0
            self.answers[status] += 1
            self.took.append((began, time.monotonic() - began))
            if status == 200:
                return
            await asyncio.sleep(0.5)

    def within(self, first: float, last: float) -> dict[str, float]:
        """How long reports took that began in this time, in milliseconds."""
        found = sorted(seconds * 1000 for began, seconds in self.took if first <= began < last)
        if not found:
            return {}
        return {"p50": round(found[len(found) // 2], 1), "p99": round(found[int(len(found) * 0.99)], 1)}


@asynccontextmanager
async def working(pods: Pods, owner: asyncpg.Connection) -> AsyncIterator[Agents]:
    """Agents carry whatever is submitted."""
    # A connection for each report, as runs have them.
    limits = httpx.Limits(max_keepalive_connections=0)
    agents, asked = Agents(httpx.AsyncClient(trust_env=False, timeout=15, limits=limits)), set[str]()
    reports: set[asyncio.Task[None]] = set()

    async def work() -> None:
        while True:
            rows = await owner.fetch("SELECT id::text FROM lockkeeper.task_attempts WHERE status = 'submitted'")
            for attempt in {row["id"] for row in rows} - asked:
                asked.add(attempt)
                reports.add(asyncio.create_task(agents.report(pods, attempt)))
            await asyncio.sleep(0.1)

    loop = asyncio.create_task(work())
    yield agents
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await asyncio.gather(*reports)
    await agents.http.aclose()


def migrate(tree: Path, server: PostgresServer) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shared.db.migrate", "--url", server.url(database="roll")], cwd=tree, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


async def logins(owner: asyncpg.Connection) -> None:
    there = {row["rolname"] for row in await owner.fetch("SELECT rolname FROM pg_roles")}
    for role in there & {role_of(service) for service in ROLES}:
        await owner.execute(f"ALTER ROLE {role} LOGIN PASSWORD '{PASSWORD}'")


async def test_a_rolling_update_from_the_version_before_loses_and_doubles_nothing(tmp_path: Path) -> None:
    before = version_before(tmp_path / "before")
    server = await asyncio.to_thread(PostgresServer.create, 18, synchronous_commit="on")
    double = await asyncio.to_thread(WorkspaceDouble, tmp_path / "double")
    pods = Pods(tmp_path, server, "roll", double)
    admin = await asyncpg.connect(server.url(database="postgres"))
    await admin.execute("CREATE DATABASE roll")
    await asyncio.to_thread(migrate, before, server)
    await logins(admin)
    owner, watch = [await asyncpg.connect(server.url(database="roll")) for _ in range(2)]
    try:
        double.fault("run", "hold", state="RUNNING")
        double.make_job("parser")
        await make_agent(owner, max_concurrent_tasks=AT_ONCE)
        await pods.start(before, *SERVICES)
        await make_tasks(owner, TASKS)
        async with working(pods, watch) as agents:
            began = time.monotonic()
            await settled(owner, TASKS // 10)
            rolled = time.monotonic()
            # The migration runs beside the old pods, then every pod is replaced.
            await asyncio.to_thread(migrate, ROOT, server)
            await logins(admin)
            await pods.roll(ROOT)
            if TASKS >= 1000:
                await pods.roll(before)
            ended = time.monotonic()
            await settled(owner, TASKS)
            done = time.monotonic()
        print(
            json.dumps(
                {
                    "tasks": TASKS, "seconds": round(done - began), "roll_seconds": round(ended - rolled),
                    "answers": dict(agents.answers), "before_ms": agents.within(began, rolled),
                    "during_ms": agents.within(rolled, ended), "after_ms": agents.within(ended, done),
                    "version_before": before != ROOT,
                }
            )
        )  # fmt: skip
        assert set(agents.answers) == {200}, "an agent met a receiver that no longer or not yet answers"
        told = await owner.fetch("SELECT status, attempt, count(*) FROM lockkeeper.tasks GROUP BY 1, 2")
        assert [(row["status"], row["attempt"], row["count"]) for row in told] == [("completed", 1, TASKS)]
        assert await owner.fetchval("SELECT count(DISTINCT run_id) FROM lockkeeper.task_attempts") == TASKS
        assert len(await asyncio.to_thread(double.runs)) == TASKS, "no run was started twice"
        assert await violations(owner) == []
    finally:
        await asyncio.to_thread(pods.stop)
        double.stop()
        for connection in (owner, watch, admin):
            await connection.close()
        await asyncio.to_thread(server.destroy)


async def settled(owner: asyncpg.Connection, count: int) -> None:
    """Until so many tasks have ended."""
    give_up_at = time.monotonic() + 600
    query = "SELECT count(*) FROM lockkeeper.tasks WHERE finished_at IS NOT NULL"
    while await owner.fetchval(query) < count:
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.2)
