"""What the attack is made on: both APIs as processes, with rows in every state that their calls can lead to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from deploy.local.folder import free_port
from services.dispatcher.storage import DispatcherStorage
from shared.contract.ownership import role_of
from shared.contract.underwriting_samples import SAMPLES
from shared.db.connecting import connect
from tests.conftest import TestDatabase
from tests.support.batch import page
from tests.support.postgres import PostgresServer
from tests.support.receiver import receiver
from tests.support.statements import ROOT
from tests.support.temporal import TemporalServer
from tests.support.underwriting_fixtures import POLICY
from tests.support.workspace import WorkspaceDouble

DATABASE = "attacked"
DOCUMENTS = {"console": "/api/v1/openapi.json", "underwriting_api": "/api/v1/underwriting/openapi.json"}
ADMIN = {"X-Forwarded-User": "admin"}
_COUNTED = (
    "lockkeeper.tasks", "lockkeeper.agents", "lockkeeper.documents", "lockkeeper.operator_audit",
    "lockkeeper.model_prices", "lockkeeper.cost_requests", "lockkeeper.customers", "lockkeeper.repricings",
    "agent_ops.agent_runs", "agent_ops.agent_review_decisions",
)  # fmt: skip
_KNOWN = {
    "task_id": "SELECT id::text FROM lockkeeper.tasks ORDER BY random() LIMIT 60",
    "parent_task_id": "SELECT id::text FROM lockkeeper.tasks WHERE gather IS NOT NULL ORDER BY random() LIMIT 20",
    "document_id": "SELECT id::text FROM lockkeeper.documents ORDER BY random() LIMIT 20",
    "agent": "SELECT name FROM lockkeeper.agents ORDER BY random() LIMIT 20",
    "customer": "SELECT customer FROM lockkeeper.tasks WHERE customer IS NOT NULL ORDER BY random() LIMIT 20",
    "request_id": "SELECT id::text FROM lockkeeper.cost_requests ORDER BY random() LIMIT 10",
    "repricing_id": "SELECT id::text FROM lockkeeper.repricings ORDER BY random() LIMIT 10",
    "model": "SELECT DISTINCT model FROM lockkeeper.model_prices LIMIT 20",
    "run_id": "SELECT run_id::text FROM agent_ops.agent_runs ORDER BY random() LIMIT 40",
    "review": "SELECT run_id || ' ' || review_id FROM agent_ops.agent_runs WHERE review_id IS NOT NULL "
    "ORDER BY state <> 'awaiting_review', random() LIMIT 20",
    "decision_id": "SELECT decision_id::text FROM agent_ops.agent_review_decisions ORDER BY random() LIMIT 20",
    "target": "SELECT target FROM lockkeeper.operator_audit ORDER BY random() LIMIT 20",
}

_FITTING: dict[str, list[Any]] = {
    "status": ["enqueued", "processing", "completed", "failed", "cancelled"], "purpose": ["auto", "personal"],
    "amount": ["25000"], "currency": ["USD"], "from": ["2026-01-01T00:00:00Z"], "to": ["2036-01-01T00:00:00Z"],
    "valid_from": ["2026-01-02T00:00:00Z"], "input_price": ["0.5", "3"], "output_price": ["15"],
    "cache_read_price": ["0.05"], "cache_write_price": ["0"], "decision": ["approve", "deny", "request_more_info"],
    "filter": [{"status": "failed"}, {"agent": "reader", "status": "enqueued"}, {"text": "no such"}],
}  # fmt: skip

Known = dict[str, list[Any]]


class Attacked:
    """Two APIs with the worker, the workspace and the Temporal that they need."""

    def __init__(self, home: Path, server: PostgresServer, urls: dict[str, str]) -> None:
        self.home = home
        self.urls = urls
        self._server = server

    def known(self) -> Known:
        """Ids and names that stand for rows now, and words that fit, by the name of the parameter that takes them."""
        return asyncio.run(self._known())

    async def _known(self) -> Known:
        owner = await asyncpg.connect(self._server.url(database=DATABASE))
        try:
            found = {name: [row[0] for row in await owner.fetch(query)] for name, query in _KNOWN.items()}
        finally:
            await owner.close()
        return {name: values for name, values in found.items() if values} | _FITTING

    def rows(self) -> dict[str, int]:
        """How many rows the tables hold that people's acts fill."""
        return asyncio.run(self._rows())

    async def _rows(self) -> dict[str, int]:
        owner = await asyncpg.connect(self._server.url(database=DATABASE))
        try:
            return {table: await owner.fetchval(f"SELECT count(*) FROM {table}") for table in _COUNTED}
        finally:
            await owner.close()

    def complaints(self) -> list[str]:
        """Errors that nobody meant, in the APIs' own logs."""
        return [
            f"{name}: {line[:1500]}"
            for name in DOCUMENTS
            for line in (self.home / f"{name}.log").read_text(errors="replace").splitlines()
            if '"request_failed"' in line or "Traceback" in line
        ]


@contextmanager
def attacked(home: Path) -> Iterator[Attacked]:
    """Everything running and filled."""
    with ExitStack() as stack:
        server = PostgresServer.create()
        stack.callback(server.destroy)
        asyncio.run(_prepare(server))
        double = WorkspaceDouble(home / "workspace")
        stack.callback(double.stop)
        temporal = TemporalServer(home / "temporal").start()
        stack.callback(temporal.stop)
        common = {**double.environment(), "TEMPORAL_ADDRESS": temporal.address}
        stack.enter_context(_process("underwriting_worker", server, common, home))
        urls = {name: stack.enter_context(_api(name, server, common, home)) for name in DOCUMENTS}
        it = Attacked(home, server, urls)
        _fill(it, server)
        yield it


async def _prepare(server: PostgresServer) -> None:
    await server.make_template()
    await server.clone(DATABASE)
    owner = await asyncpg.connect(server.url(database=DATABASE))
    await owner.execute(POLICY)
    await owner.close()


@contextmanager
def _process(
    name: str, server: PostgresServer, common: dict[str, str], home: Path, **own: str
) -> Iterator[subprocess.Popen[bytes]]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKKEEPER_", "PG"))}
    environment = {
        **clean, **common, "LOCKKEEPER_DATABASE_URL": server.url(role_of(name), DATABASE),
        "LOCKKEEPER_OPS_PORT": str(free_port()), **own,
    }  # fmt: skip
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"services.{name}"], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def _api(name: str, server: PostgresServer, common: dict[str, str], home: Path) -> Iterator[str]:
    """A service that believes whom its proxy names; its address."""
    port = free_port()
    own = {
        "LOCKKEEPER_PORT": str(port), "LOCKKEEPER_IDENTITY_MODE": "forwarded",
        "LOCKKEEPER_IDENTITY_TRUSTED_PROXIES": '["127.0.0.0/8"]',
        "LOCKKEEPER_IDENTITY_ROLES": '{"admin": ["admin"], "viewer": ["viewer"]}',
    }  # fmt: skip
    with _process(name, server, common, home, **own) as process:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while not _answers(url + DOCUMENTS[name]):
            assert process.poll() is None and time.monotonic() < deadline, (home / f"{name}.log").read_text()[-2000:]
            time.sleep(0.2)
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, headers=ADMIN, timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _fill(it: Attacked, server: PostgresServer) -> None:
    """Rows by the APIs' own calls, then tasks moved on by the services that do so."""
    with httpx.Client(headers=ADMIN, timeout=60, trust_env=False) as http:
        _fill_console(http, it.urls["console"] + "/api/v1")
        for sample in SAMPLES[:4]:
            body = {"applicant": sample.applicant, "amount": str(sample.amount), "purpose": sample.purpose}
            _ok(http.post(it.urls["underwriting_api"] + "/api/v1/underwriting/runs", json=body))
    asyncio.run(_work(server))


def _fill_console(http: httpx.Client, base: str) -> None:
    files = [("files", (f"{number}.pdf", page(number), "application/pdf")) for number in range(1, 4)]
    documents = [each["id"] for each in _ok(http.post(f"{base}/documents", files=files)).json()["documents"]]
    for name in ("reader", "writer", "sleeper"):
        _ok(http.put(f"{base}/agents/{name}", json={"target": "document-agent", "max_tpm": 1_000_000}))
    for number in range(24):
        body = {
            "agent": ("reader", "writer")[number % 2], "document_id": documents[number % 3], "customer": f"c{number % 4}",
            "labels": {"batch": str(number % 3)}, "idempotency_key": f"key-{number}",
        }  # fmt: skip
        _ok(http.post(f"{base}/tasks", json=body))
    child = {"agent": "sleeper", "input": {"text": "hello"}}
    _ok(http.post(f"{base}/tasks", json={**child, "gather": "all_completed", "children": [child, child]}))
    _ok(http.put(f"{base}/customers/c1", json={"daily_budget": "1000"}))
    _ok(http.post(f"{base}/costs/refresh", json={}))
    price = {"model": "m", "input_price": "1", "output_price": "2", "valid_from": "2026-01-01T00:00:00Z"}
    _ok(http.put(f"{base}/prices", json={"prices": [price]}))
    _ok(http.post(f"{base}/prices/repricings", json={"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z"}))


def _ok(answer: httpx.Response) -> httpx.Response:
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:500]}"
    return answer


async def _work(server: PostgresServer) -> None:
    """Some tasks run, some completed with a cost, some failed; the others still wait."""
    database = TestDatabase(server, DATABASE, await connect(server.url(database=DATABASE), name="owner"))
    pool = await database.open("dispatcher")
    dispatcher = DispatcherStorage(pool, "d")
    leased: list[Any] = await dispatcher.claim_tasks(16, 86_400)
    await dispatcher.record_runs([(each.attempt_id, number) for number, each in enumerate(leased, 1)])
    async with receiver(database) as it:
        for number, each in enumerate(leased):
            if number % 4 < 2:
                await it.result(each.attempt_id)
            elif number % 4 == 2:
                await it.failure(each.attempt_id, retryable=False)
    await pool.close()
    await database.owner.close()
