"""Batches of one-page documents on a whole stack: submitted, watched and judged from outside."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from deploy.local.documents.paper import Paper
from deploy.local.folder import StackFolder, free_port
from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from shared.db.connecting import connect
from shared.db.invariants import violations
from tests.support.stack import CHECKOUT, StackProcess

BATCH = int(os.environ.get("LOCKKEEPER_TEST_BATCH", "8"))
"""Tasks of one story; the long form is `LOCKKEEPER_TEST_BATCH=50 ./dev test acceptance`."""
PATIENCE = 60 + 4 * BATCH
"""Seconds in which a batch ends even on a machine that does much else."""

ENDS = frozenset({"completed", "failed", "cancelled"})
_NOT_NOW = frozenset({502, 503, 504})
_JOB = "/api/2.2/jobs"


def page(number: int) -> bytes:
    """A one-page letter with text; each number gives other bytes."""
    paper = Paper()
    paper.heading(f"Delivery note {number}")
    paper.lines(
        "From: Harbour Lane Instruments Ltd",
        "To: Millbrook Observatory Trust",
        f"Date: {number % 28 + 1} March 2026",
        f"Parcel {number} holds {number % 9 + 1} barometers for the house at Hill Road {number}.",
        f"Carriage: EUR {number % 90 + 10}.50",
    )
    return bytes(paper.output())


@dataclass
class Batch:
    """Tasks of one story."""

    agent: str
    ids: list[str] = field(default_factory=list)
    begun_ms: int = field(default_factory=lambda: int(time.time() * 1000))


class StackUser:
    """What people, programs and operators do on a stack, and what they see of it."""

    def __init__(self, stack: StackProcess) -> None:
        self.stack = stack
        self.http = httpx.Client(base_url=stack.description()["url"], timeout=30, trust_env=False)
        self._folder = StackFolder(stack.folder)
        self._token: str | None = None

    def close(self) -> None:
        self.http.close()

    # -- the API, with the patience that a good client has

    def ask(self, method: str, path: str, *, seconds: float = 60, **given: Any) -> Any:
        """The JSON of a call that succeeds; while the stack says "not now", it is asked again."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self._try(method, path, **given)
            if answer is not None:
                assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
                return answer.json()
            assert time.monotonic() < deadline, f"{method} {path}: no answer within {seconds} s\n{self.stack.said()}"
            time.sleep(0.1)

    def _try(self, method: str, path: str, **given: Any) -> httpx.Response | None:
        try:
            answer = self.http.request(method, path, **given)
        except httpx.TransportError:
            return None
        return None if answer.status_code in _NOT_NOW else answer

    def agent(self, name: str, **settings: Any) -> str:
        """Make or change an agent with a short lease."""
        usual = {"target": "document-agent", "lease_seconds": 10, "max_concurrent_tasks": 6, "expected_seconds": 5}
        self.ask("PUT", f"/api/v1/agents/{name}", json={**usual, **settings})
        return name

    def upload(self, papers: Sequence[bytes]) -> list[str]:
        """The ids of these documents."""
        files = [("files", (f"{number}.pdf", data, "application/pdf")) for number, data in enumerate(papers)]
        return [each["id"] for each in self.ask("POST", "/api/v1/documents", files=files)["documents"]]

    def submit(self, agent: str, documents: Sequence[str], batch: Batch | None = None, **terms: Any) -> Batch:
        """Enqueue a task for each document; asked twice, each is still enqueued once."""
        batch = batch or Batch(agent)
        for document in documents:
            body = {"agent": agent, "document_id": document, "idempotency_key": f"{agent}-{len(batch.ids)}", **terms}
            batch.ids.append(self.ask("POST", "/api/v1/tasks", json=body)["id"])
        return batch

    def task(self, task_id: str) -> dict[str, Any]:
        """Everything about one task."""
        shown: dict[str, Any] = self.ask("GET", f"/api/v1/tasks/{task_id}")
        return shown

    def counts(self, batch: Batch) -> Counter[str]:
        """How many tasks of the story's agent are in which state."""
        return Counter(self.ask("GET", "/api/v1/summary", params={"agent": batch.agent})["counts"])

    # -- facts to wait for

    def wait(self, fact: Callable[[], bool], seconds: float) -> None:
        self.stack.wait(fact, seconds)

    def wait_under_way(self, batch: Batch, seconds: float = 60) -> None:
        """Some have ended, some run, some wait or run still."""

        def is_under_way() -> bool:
            counts = self.counts(batch)
            ended = sum(counts[each] for each in ENDS)
            assert ended < len(batch.ids), f"the batch was over before the story began: {counts}"
            return ended > 0 and counts["processing"] > 0

        self.wait(is_under_way, seconds)

    def ended(self, batch: Batch, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        """All tasks of the batch, once each has ended."""
        self.wait(lambda: sum(self.counts(batch)[each] for each in ENDS) >= len(batch.ids), seconds)
        return [self.task(each) for each in batch.ids]

    # -- the judgement

    def judge(self, batch: Batch, *, attempts: int = 1, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        """Every task completed, once, with at most so many attempts and one run for each; the invariants hold."""
        tasks = self.ended(batch, seconds)
        assert Counter(task["status"] for task in tasks) == {"completed": len(tasks)}, [
            (task["status"], task["error"], task["events"]) for task in tasks if task["status"] != "completed"
        ]
        spent = Counter(task["attempt"] for task in tasks)
        assert max(spent) <= attempts, [task["events"] for task in tasks if task["attempt"] > attempts]
        for task in tasks:
            states = Counter(each["status"] for each in task["attempts"])
            assert states["completed"] == 1, task["attempts"]
        self.wait(lambda: not self.runs(batch, active_only="true"), 30)
        of_attempts = Counter(self.attempt_of(run) for run in self.runs(batch))
        assert {attempt: runs for attempt, runs in of_attempts.items() if runs > 1} == {}
        self.check_invariants()
        return tasks

    def check_invariants(self) -> None:
        """Nothing that must hold at every instant is broken."""
        assert asyncio.run(self._violations()) == []

    async def _violations(self) -> list[Any]:
        connection = await connect(self.stack.description()["database_url"], name="test-judge")
        try:
            return await violations(connection)
        finally:
            await connection.close()

    # -- the workspace

    def workspace(self, method: str, path: str, **given: Any) -> Any:
        """A call of the workspace as its administrator."""
        base = self.stack.part("workspace")["url"]
        if self._token is None:
            secret = self._folder.secret("principal_lockkeeper")
            form = {"grant_type": "client_credentials", "scope": "all-apis"}
            login = self.ask("POST", f"{base}/oidc/v1/token", data=form, auth=("lockkeeper", secret))
            self._token = f"Bearer {login['access_token']}"
        return self.ask(method, base + path, headers={"Authorization": self._token}, **given)

    def runs(self, batch: Batch, **query: str) -> list[dict[str, Any]]:
        """The runs of this story's attempts."""
        wanted = set(batch.ids)
        found: list[dict[str, Any]] = []
        asked: dict[str, Any] = {"limit": 25, "start_time_from": batch.begun_ms, **query}
        while True:
            answer = self.workspace("GET", f"{_JOB}/runs/list", params=asked)
            found += answer["runs"]
            if not answer["has_more"]:
                return [run for run in found if _parameter(run, "task_id") in wanted]
            asked["page_token"] = answer["next_page_token"]

    @staticmethod
    def attempt_of(run: dict[str, Any]) -> str:
        """The attempt that a run carries."""
        return _parameter(run, "attempt_id")

    def break_it(self, **rule: Any) -> str:
        """Make the workspace go wrong by this rule; the rule's id."""
        return str(self.workspace("POST", "/faults", json=rule)["id"])

    def used(self, rule: str) -> int:
        """How often a rule struck."""
        rules = self.workspace("GET", "/faults")["rules"]
        return int(next(each["used"] for each in rules if each["id"] == rule))

    def mend(self) -> None:
        """Take every rule out."""
        base = self.stack.part("workspace")["url"]
        self.wait(lambda: self._try("DELETE", f"{base}/faults") is not None, 60)

    # -- processes

    def working(self) -> psutil.Process:
        """A warm process that executes a run now: it has a log file of a run open."""
        double = psutil.Process(self.stack.part("workspace")["pid"])
        found: list[psutil.Process] = []

        def is_found() -> bool:
            found.extend(each for each in double.children() if not _output(each).name.startswith("process-"))
            return bool(found)

        self.wait(is_found, 30)
        return found[0]

    def twin(self, service: str, name: str) -> subprocess.Popen[bytes]:
        """One more replica of a service, outside the supervisor, ready."""
        given = psutil.Process(self.stack.part(service)["pid"]).environ()
        own = {
            "LOCKKEEPER_REPLICA": name,
            "LOCKKEEPER_PORT": str(free_port()),
            "LOCKKEEPER_OPS_PORT": str(free_port()),
        }
        with (self.stack.folder / "logs" / f"{name}.log").open("wb") as log:
            twin = subprocess.Popen(
                [sys.executable, "-m", f"services.{service}"], env=given | own, cwd=CHECKOUT, stdout=log, stderr=log
            )
        self.wait(lambda: _ready(int(own["LOCKKEEPER_OPS_PORT"])), 60)
        return twin

    # -- the agent's side

    def call_back(self, attempt_id: str, verb: str, body: dict[str, Any]) -> httpx.Response:
        """Post a signed callback, as the run of this attempt would."""
        raw = json.dumps(body).encode()
        timestamp = str(int(time.time()))
        signature = sign(self._folder.secret("callback_key").encode(), timestamp, raw)
        headers = {
            "Content-Type": "application/json", TIMESTAMP_HEADER: timestamp, KEY_ID_HEADER: "local-1",
            SIGNATURE_HEADER: signature,
        }  # fmt: skip
        return self.http.post(f"/callbacks/v1/attempts/{attempt_id}/{verb}", content=raw, headers=headers)


def _output(process: psutil.Process) -> Path:
    """The file that the process writes its words to."""
    return Path(f"/proc/{process.pid}/fd/1").readlink()


def _parameter(run: dict[str, Any], name: str) -> str:
    return next((str(each["value"]) for each in run["job_parameters"] if each["name"] == name), "")


def _ready(ops_port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{ops_port}/readyz", timeout=2, trust_env=False).is_success
    except httpx.TransportError:
        return False
