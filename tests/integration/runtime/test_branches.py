"""A copy of a busy database: every service starts on it, and nothing happens until somebody adopts it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from click.testing import CliRunner

from deploy.local.folder import free_port
from lockkeeper.cli import lockkeeper
from services.dispatcher.storage import DispatcherStorage
from shared.contract.ownership import role_of
from shared.db.connecting import connect
from shared.db.deployment import Deployment
from shared.db.pool import Database
from shared.testing.rows import make_agent, make_tasks
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.support.statements import ROOT
from tests.support.workspace import WorkspaceDouble

SERVICES = ("dispatcher", "sweeper", "callback_receiver", "cost_attributor", "notifier", "console")


async def command(*arguments: str) -> Any:
    """A `lockkeeper branch` command's JSON."""
    done = await asyncio.to_thread(CliRunner().invoke, lockkeeper, ["branch", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in arguments else None


@asynccontextmanager
async def branch_of_a_busy_database(database: TestDatabase, *options: str) -> AsyncIterator[TestDatabase]:
    """Ten tasks wait, one is leased, one run is to be cancelled; somebody works in it while it is copied."""
    await make_agent(database.owner, "reader", max_concurrent_tasks=50)
    await make_tasks(database.owner, 12, agent="reader", customer="Harbour Lane")
    pool = await database.open("dispatcher")
    leased = await DispatcherStorage(pool, "gone").claim_tasks(2, 0.001)
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET run_id = 4711, status = 'submitted', cancel_requested_at = now() WHERE id = $1",
        leased[0].attempt_id,
    )
    name = f"b{uuid4().hex[:8]}"
    busy = asyncio.create_task(keep_busy(pool))
    made = await command("create", name, "--url", database.url(), "--json", *options)
    assert await pool.fetchval("SELECT count(*) FROM lockkeeper.tasks") == 12  # the original heals by itself
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    await pool.close()
    copy_name = made["url"].rpartition("/")[2]
    owner = await connect(database.server.url(database=copy_name), name="test-owner")
    try:
        yield TestDatabase(database.server, copy_name, owner)
    finally:
        await owner.close()
        await command("delete", name, "--url", database.url())


async def keep_busy(pool: Database) -> None:
    while True:
        await pool.fetchval("SELECT count(*) FROM lockkeeper.tasks")


@asynccontextmanager
async def running(service: str, database: TestDatabase, double: WorkspaceDouble, home: Path) -> AsyncIterator[int]:
    """A service as a process on this database; its ops port."""
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKKEEPER_", "PG"))}
    own = {
        **double.environment(), "LOCKKEEPER_DATABASE_URL": database.url(service), "LOCKKEEPER_OPS_PORT": str(port),
        "LOCKKEEPER_HEARTBEAT_SECONDS": "0.5", "LOCKKEEPER_CALLBACK_RECEIVER_KEYS": '{"k": "0123456789abcdef"}',
        "DATABRICKS_WAREHOUSE_ID": "local", "MLFLOW_TRACKING_URI": "http://127.0.0.1:1",
    }  # fmt: skip
    if service != "callback_receiver":
        del own["LOCKKEEPER_CALLBACK_RECEIVER_KEYS"]
    with (home / f"{service}.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - forked before anything waits
            [sys.executable, "-m", f"services.{service}"], cwd=ROOT, env=clean | own, stdout=log, stderr=log
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as ops:

            async def is_ready() -> bool:
                assert process.poll() is None, (home / f"{service}.log").read_text()
                try:
                    return (await ops.get("/readyz")).is_success
                except httpx.TransportError:
                    return False

            await until(is_ready, seconds=60, every=0.2)
        yield port
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


async def state(owner: Any) -> list[Any]:
    """All that acting would change."""
    rows = await owner.fetch(
        "SELECT t.id::text, t.version, t.status, x.status AS attempt, x.run_id, x.cancel_checked_at, x.cost_checked_at"
        "  FROM lockkeeper.tasks t LEFT JOIN lockkeeper.task_attempts x ON x.task_id = t.id ORDER BY t.id"
    )
    return [tuple(row) for row in rows]


@pytest.mark.timeout(300)
async def test_every_service_starts_on_a_branch_and_nothing_acts_until_it_is_adopted(
    database: TestDatabase, shared_workspace: WorkspaceDouble, tmp_path: Path
) -> None:
    shared_workspace.make_job("reader")
    async with branch_of_a_busy_database(database) as copy:
        await copy.owner.execute("UPDATE lockkeeper.agents SET target = 'reader'")
        before, runs = await state(copy.owner), len(shared_workspace.runs())
        for service in SERVICES[1:]:
            async with running(service, copy, shared_workspace, tmp_path) as port:
                await turned(port)
        async with running("dispatcher", copy, shared_workspace, tmp_path) as port:
            await turned(port)
            assert await state(copy.owner) == before
            assert len(shared_workspace.runs()) == runs
            await command("adopt", "--yes", "--url", copy.url(), "--json")

            async def all_dispatched() -> bool:
                waiting = "SELECT count(*) FROM lockkeeper.tasks WHERE status = 'enqueued'"
                return await copy.owner.fetchval(waiting) == 0 and len(shared_workspace.runs()) > runs

            await until(all_dispatched, seconds=60, every=0.2)
        audit = await copy.owner.fetchrow("SELECT * FROM lockkeeper.operator_audit WHERE action = 'adopt_branch'")
        assert audit["before"]["database"] != audit["after"]["database"]


async def turned(port: int) -> None:
    """The process knows that it is on a copy, and its loops turn all the same."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as ops:

        async def has_turned() -> bool:
            said = (await ops.get("/metrics")).text
            rounds = [line for line in said.splitlines() if line.startswith("lockkeeper_loop_rounds_total")]
            return "lockkeeper_database_adopted 0.0" in said and len(rounds) > 1

        await until(has_turned, seconds=20, every=0.2)


async def test_a_claim_itself_refuses_on_a_copy_and_without_the_check_would_not(database: TestDatabase) -> None:
    async with branch_of_a_busy_database(database) as copy:
        pool = await copy.open("dispatcher")
        storage = DispatcherStorage(pool, "here")
        assert await storage.claim_tasks(10, 60) == []
        assert await storage.take_over_unsubmitted(10, 60, 10) == []
        assert await storage.take_cancellations(10, 0) == []
        await copy.owner.execute(
            "CREATE OR REPLACE FUNCTION lockkeeper.is_adopted() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true'"
        )
        assert len(await storage.claim_tasks(10, 60)) == 10
        assert len(await storage.take_cancellations(10, 0)) == 1
        await pool.close()


async def test_a_lakebase_branch_copies_the_ids_too_and_is_told_by_its_name(database: TestDatabase) -> None:
    await make_agent(database.owner, "reader")
    await make_tasks(database.owner, 1, agent="reader")
    await database.owner.execute("SELECT lockkeeper.adopt('projects/p/branches/production', 'test')")
    for branch, claimed in (("projects/p/branches/debug", 0), ("", 0), ("projects/p/branches/production", 1)):
        pool = Database(database.url("dispatcher"), name="branch", branch=branch)
        await pool.open()
        assert len(await DispatcherStorage(pool, "here").claim_tasks(5, 60)) == claimed, branch
        await pool.close()


async def test_a_service_role_cannot_adopt(database: TestDatabase) -> None:
    for service in SERVICES:
        connection = await connect(database.url(service), name="test")
        with pytest.raises(Exception, match="permission denied"):
            await connection.execute("SELECT lockkeeper.adopt('', $1)", role_of(service))
        await connection.close()


async def test_a_masked_branch_knows_no_customer(database: TestDatabase) -> None:
    await database.owner.execute(
        "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, customer, uploaded_by)"
        " VALUES ('Harbour Lane.pdf', '/Volumes/a/b/c/1', 'x', 1, 'Harbour Lane', 'u')"
    )
    async with branch_of_a_busy_database(database, "--mask") as copy:
        for table in ("tasks", "documents", "attempt_results"):
            text = str([tuple(row) for row in await copy.owner.fetch(f"SELECT * FROM lockkeeper.{table}")])
            assert "Harbour" not in text
        assert await copy.owner.fetchval("SELECT count(DISTINCT customer) FROM lockkeeper.tasks") == 1
    original = await connect(database.url(), name="test")
    assert await original.fetchval("SELECT count(*) FROM lockkeeper.tasks WHERE customer = 'Harbour Lane'") == 12
    await original.close()


async def test_a_lakebase_branch_is_made_and_deleted_through_the_platform(
    workspace: WorkspaceDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shared.vendors import lakebase

    monkeypatch.setattr(lakebase, "_workspace", None)
    endpoint = "projects/p/branches/production/endpoints/primary"
    made, host = await lakebase.create_branch(endpoint, "debug", 3)
    assert (made, host) == ("projects/p/branches/debug/endpoints/primary", "127.0.0.1")
    spec = workspace.http.get("/api/2.0/postgres/projects/p/branches/debug").json()["spec"]
    assert spec == {"source_branch": "projects/p/branches/production", "ttl": "259200s"}
    await lakebase.delete_branch(endpoint, "debug")
    assert workspace.http.get("/api/2.0/postgres/projects/p/branches/debug").status_code == 404


async def test_loops_that_ask_at_the_same_moment_hear_the_same_answer(database: TestDatabase) -> None:
    pool = await database.open("sweeper")
    deployment = Deployment(pool)
    assert await asyncio.gather(*(deployment.is_adopted() for _ in range(5))) == [True] * 5
    await pool.close()
