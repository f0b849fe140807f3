"""Every service of the version before is replaced by this one while a batch is under way."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from shared.contract.ownership import ROLES, role_of
from shared.db.invariants import violations
from shared.testing.rows import make_agent, make_tasks
from tests.support.pods import KEY, KEY_ID, Pods
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.reporting import working
from tests.support.statements import ROOT
from tests.support.workspace import WorkspaceDouble

pytestmark = pytest.mark.timeout(900)
TASKS = int(os.environ.get("LOCKKEEPER_TEST_ROLL", "40"))
"""`LOCKKEEPER_TEST_ROLL=1000` is the long form: more replicas, and back to the version before."""
LONG = TASKS >= 1000
AT_ONCE = 30 if LONG else 5
RUN_SECONDS = 1.5
EACH = ("callback_receiver", "dispatcher", "sweeper", "cost_attributor", "notifier", "console")
SERVICES = (*EACH, "callback_receiver", "dispatcher") if LONG else EACH


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
        async with working(watch, lambda: pods.address("callback_receiver"), KEY_ID, KEY, RUN_SECONDS) as agents:
            began = time.monotonic()
            await settled(owner, TASKS // 10)
            rolled = time.monotonic()
            # The migration runs beside the old pods, then every pod is replaced.
            await asyncio.to_thread(migrate, ROOT, server)
            await logins(admin)
            await pods.roll(ROOT)
            if LONG:
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
        assert agents.within(rolled, ended), "nothing was under way"
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
