"""The whole OpenAPI of the console and the underwriting API, called with all that fits and all that does not.

Schemathesis makes the calls from the documents themselves. As an administrator nothing may answer 5xx or tell
of our insides; as a viewer nothing may have an effect. Every text field carries SQL, markup, paths and addresses.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from shared.contract.ownership import role_of
from tests.support.postgres import PostgresServer, free_port
from tests.support.statements import ROOT
from tests.support.workspace import WorkspaceDouble

DATABASE = "attacked"
DOCUMENTS = {"console": "/api/v1/openapi.json", "underwriting_api": "/api/v1/underwriting/openapi.json"}
PEOPLE = ("admin", "viewer")
_LEAKS = re.compile(
    r"Traceback|asyncpg|File \"/|\bat 0x[0-9a-f]{6}|lockkeeper_(console|owner)|postgresql://|syntax error at|"
    r"relation \"|column \"|PGPASSWORD|BEGIN PRIVATE KEY|/site-packages/"
)
_NOT_AN_ANSWER = frozenset({503, 507})
"""Said on purpose when something outside is away: Temporal is, here."""
_WATCHED = (
    "lockkeeper.tasks", "lockkeeper.agents", "lockkeeper.documents", "lockkeeper.operator_audit",
    "lockkeeper.model_prices", "lockkeeper.cost_requests", "lockkeeper.customers", "lockkeeper.api_tokens",
    "agent_ops.agent_runs", "agent_ops.agent_review_decisions",
)  # fmt: skip


@dataclass
class Witness:
    """What was answered."""

    faults: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    operations: set[str] = field(default_factory=set)

    def judge(self, person: str, label: str, answer: Any, sent: str) -> None:
        self.operations.add(label)
        self.answers[f"{person} {answer.status_code}"] += 1
        text = answer.text[:100_000] if "json" in answer.headers.get("content-type", "") else ""
        said = None
        if answer.status_code >= 500 and answer.status_code not in _NOT_AN_ANSWER:
            said = f"{answer.status_code} {text[:300]}"
        elif answer.status_code >= 400 and (leak := _LEAKS.search(text)):
            said = f"tells {leak[0]!r}: {text[:300]}"
        elif person == "viewer" and answer.request.method not in {"GET", "HEAD"} and answer.status_code < 400:
            said = f"let a viewer {answer.request.method}: {answer.status_code}"
        if said is not None and len(self.faults) < 50:
            self.faults.append(f"{label} as {person}: {said} <- {sent[:300]}")
            print(self.faults[-1], flush=True)


@contextmanager
def service(name: str, server: PostgresServer, double: WorkspaceDouble, home: Path) -> Iterator[str]:
    """A service as a process that believes whom its proxy names; its address."""
    port = free_port()
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKKEEPER_", "PG"))}
    own = {
        **double.environment(), "LOCKKEEPER_DATABASE_URL": server.url(role_of(name), DATABASE),
        "LOCKKEEPER_PORT": str(port), "LOCKKEEPER_IDENTITY_MODE": "forwarded", "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "LOCKKEEPER_IDENTITY_TRUSTED_PROXIES": '["127.0.0.0/8"]',
        "LOCKKEEPER_IDENTITY_ROLES": '{"admin": ["admin"], "viewer": ["viewer"]}',
    }  # fmt: skip
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"services.{name}"], cwd=ROOT, env=clean | own, stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while not _answers(url + DOCUMENTS[name]):
            assert process.poll() is None and time.monotonic() < deadline, (home / f"{name}.log").read_text()[-2000:]
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, headers={"X-Forwarded-User": "admin"}, timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def attack(url: str, document: str, witness: Witness, until: float, examples: int) -> None:
    """Every operation in turn, valid and invalid, as both persons, until the time is over."""
    headers = {"X-Forwarded-User": "admin"}
    schema = schemathesis.openapi.from_dict(
        httpx.get(url + document, headers=headers, timeout=30, trust_env=False).json()
    )
    operations = [each.ok() for each in schema.get_all_operations()]
    number = 0
    while True:
        for operation in operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                for person in PEOPLE:
                    number += 1
                    _storm(operation, mode, url, person, witness, examples, number)
                    if time.monotonic() > until:
                        return


def _storm(
    operation: Any, mode: GenerationMode, url: str, person: str, witness: Witness, examples: int, number: int
) -> None:
    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def storm(case: Any) -> None:
        answer = case.call(base_url=url, headers={"X-Forwarded-User": person}, timeout=60)
        witness.judge(person, operation.label, answer, f"{case.path_parameters} {case.query} {case.body!r}")

    try:
        storm()
    except Exception as error:  # noqa: BLE001 - what cannot be made or sent is no answer, and is counted
        witness.answers[f"not sent: {type(error).__name__}"] += 1


async def _prepare(server: PostgresServer) -> None:
    await server.make_template()
    await server.clone(DATABASE)
    owner = await asyncpg.connect(server.url(database=DATABASE))
    await owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('reader', 'document-agent')")
    await owner.close()


async def _rows(server: PostgresServer) -> dict[str, int]:
    owner = await asyncpg.connect(server.url(database=DATABASE))
    try:
        return {table: await owner.fetchval(f"SELECT count(*) FROM {table}") for table in _WATCHED}
    finally:
        await owner.close()


def run(minutes: float) -> dict[str, Any]:
    """The attack over so many minutes, shared by the two APIs."""
    witness, examples = Witness(), 20 if minutes >= 10 else 4
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockkeeper-attack-")))
        server = PostgresServer.create()
        stack.callback(server.destroy)
        asyncio.run(_prepare(server))
        double = WorkspaceDouble(home / "workspace")
        stack.callback(double.stop)
        urls = {name: stack.enter_context(service(name, server, double, home)) for name in DOCUMENTS}
        began = time.monotonic()
        for share, name in ((0.75, "console"), (1.0, "underwriting_api")):
            attack(urls[name], DOCUMENTS[name], witness, began + minutes * 60 * share, examples)
        rows = asyncio.run(_rows(server))
        for name in DOCUMENTS:
            for line in (home / f"{name}.log").read_text(errors="replace").splitlines():
                if '"request_failed"' in line or "Traceback" in line:
                    witness.faults.append(f"{name}: {line[:1500]}")
    return {
        "name": "soak_attack", "minutes": minutes, "faults": witness.faults, "answers": dict(witness.answers),
        "calls": sum(witness.answers.values()), "operations": len(witness.operations), "rows": rows,
    }  # fmt: skip
