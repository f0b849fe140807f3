"""The crash exercise: workers are killed where it hurts, others go on, and the proof is printed.

It uses the running stack (or starts what it needs of one), with workers and a task queue of its own, so that the
stack's own worker neither helps nor suffers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import click
import httpx
import structlog

from deploy.local.crash_worker import CRASH_AT
from deploy.local.folder import StackFolder
from deploy.local.wiring import CHECKOUT, Wiring
from services.underwriting_api.gateways import TemporalGateway
from services.underwriting_api.loops import Delivery
from services.underwriting_api.settings import ApiSettings
from services.underwriting_api.storage import ApiStorage
from shared.contract.ids import uuid7
from shared.contract.ownership import role_of
from shared.contract.underwriting import Decision, LoanRequest, review_id
from shared.contract.underwriting_samples import SAMPLES
from shared.db.pool import Database

NEEDED = "underwriting_api,underwriting_worker,policy_sync,temporal,workspace,setup,front_door"
WAIT_SECONDS = 90.0
MODEL_SECONDS = 12
"""How long the stand-in hesitates, so that there is a middle of the call to be killed in."""

Json = dict[str, Any]


@dataclass
class Exercise:
    """One exercise on one stack: its workers, its run, and what was seen."""

    wiring: Wiring
    storage: ApiStorage
    delivery: Delivery
    database: asyncpg.Connection
    queue: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """One line of the story."""
        click.echo(f"  {text}")

    def work(self, crash_at: str | None = None) -> subprocess.Popen[bytes]:
        """Start a worker, armed or not."""
        name = f"worker-{len(self.workers) + 1}"
        environment = dict(os.environ) | self.wiring.service("underwriting_worker") | {
            "LOCKKEEPER_REPLICA": name, "LOCKKEEPER_UNDERWRITING_WORKER_TASK_QUEUE": self.queue,
            "LOCKKEEPER_OPS_PORT": "0", "LOCKKEEPER_PORT": "0", "MLFLOW_TRACKING_URI": "",
        }  # fmt: skip
        environment |= {} if crash_at is None else {CRASH_AT: crash_at}
        log = self.wiring.folder.logs / "crash_demo.log"
        with log.open("ab") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "deploy.local.crash_worker"], cwd=CHECKOUT, env=environment, stdout=output,
                stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.workers.append(worker)
        self.say(f"{name} starts" + (f", armed to die at {crash_at}" if crash_at else ""))
        return worker

    async def until(self, fact: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for a fact. Raises TimeoutError when it does not come true."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not await fact():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {WAIT_SECONDS:.0f} s")
            await asyncio.sleep(0.1)

    async def died(self, worker: subprocess.Popen[bytes]) -> None:
        """Wait until the worker is dead."""

        async def dead() -> bool:
            return worker.poll() is not None

        await self.until(dead, "the worker dies")
        self.say(f"worker-{self.workers.index(worker) + 1} is dead (kill -9)")

    async def reaches(self, run: UUID, state: str) -> None:
        """Wait until the run is in this state."""

        async def there() -> bool:
            row = await self.storage.read_run(run)
            return row is not None and row["state"] == state

        await self.until(there, f"the run is {state}")

    def prove(self, claim: str, *, holds: bool) -> None:
        """One line of the proof."""
        click.echo(f"  {'ok  ' if holds else 'FAIL'}  {claim}")
        if not holds:
            self.failures.append(claim)


async def tell(exercise: Exercise) -> None:
    """Three kills in one run."""
    run, options = uuid7(), {"pace": {"tool_heartbeat": "PT2S", "model_heartbeat": "PT3S"}}
    sample = SAMPLES[0]
    request = LoanRequest(
        user="crash-demo", applicant=sample.applicant, amount=sample.amount, purpose=sample.purpose,
        stated_annual_income=sample.stated_income,
    )  # fmt: skip
    await exercise.storage.insert_run(run, request, options, None, "")
    await exercise.delivery.start(run, request, options)
    first_run = await _temporal_run(exercise, run)
    click.echo(f"\nrun {run}\n\n1. killed after a tool's effect, before its completion was reported")
    await exercise.died(exercise.work("credit_check:after"))

    click.echo("\n2. killed in the middle of the model call")
    async with httpx.AsyncClient(base_url=exercise.wiring.http("workspace"), trust_env=False) as http:
        rule = {"api": "serving.chat", "kind": "delay", "seconds": MODEL_SECONDS, "times": 1}
        rule |= {"match": {"client_id": role_of("underwriting_worker")}}
        (await http.post("/faults", json=rule)).raise_for_status()
    worker = exercise.work()

    async def asks() -> bool:
        detail = await exercise.storage.read_detail(run)
        return any(step["activity"] == "call_model" and step["outcome"] == "running" for step in detail["steps"])

    await exercise.until(asks, "the model is being asked")
    await asyncio.sleep(1)
    worker.send_signal(signal.SIGKILL)
    await exercise.died(worker)

    click.echo("\n3. killed while the run waits for a person, who decides meanwhile")
    worker = exercise.work()
    await exercise.reaches(run, "awaiting_review")
    exercise.say("the recommendation is there, the run waits")
    worker.send_signal(signal.SIGKILL)
    await exercise.died(worker)
    decision = Decision(
        decision_id=uuid7(), review_id=review_id(run, 1), decision="approve", reviewer="reviewer-1", note="crash-demo"
    )
    await exercise.storage.insert_decision(run, decision)
    verdict = await exercise.delivery.decide(run, decision)
    exercise.say(f"a person approves while nobody works: {verdict.status}")
    exercise.work()
    await exercise.reaches(run, "completed")
    await exercise.delivery.decide(run, decision)
    await _prove(exercise, run, first_run)


async def _prove(exercise: Exercise, run: UUID, first_run: str) -> None:
    detail = await exercise.storage.read_detail(run)
    row = await exercise.storage.read_run(run) or {}
    click.echo("\nproof")
    exercise.prove(f"the run ended as approved: {row['outcome']}", holds=row["outcome"] == "approved")
    last_run = await _temporal_run(exercise, run)
    exercise.prove(f"it is the same Temporal run all along: {first_run}", holds=first_run == last_run)
    tools = [call["tool"] for call in detail["tool_calls"]]
    exercise.prove(f"each tool took effect once: {', '.join(tools)}", holds=len(set(tools)) == len(tools) == 4)
    answers = [message for message in detail["messages"] if message["role"] == "assistant"]
    paid = await exercise.database.fetchval(
        "SELECT count(*) FROM lockkeeper.cost_entries WHERE task_id = $1 AND source = 'underwriting'", run
    )
    exercise.prove(f"one answer of the model, paid once: {len(answers)}, {paid}", holds=len(answers) == paid == 1)
    decided = [each for each in detail["decisions"] if each["effect"] == "decided"]
    exercise.prove(f"one decision counts: {decided[0]['reviewer'] if decided else None}", holds=len(decided) == 1)
    names = [event["name"] for event in detail["events"] if event["name"] != "agent.step_recovered"]
    exercise.prove(f"each event once: {', '.join(names)}", holds=len(set(names)) == len(names))
    for activity, outcomes in (("credit_check", ["succeeded", "reused"]), ("call_model", ["lost", "succeeded"])):
        seen = [step for step in detail["steps"] if step["activity"] == activity]
        shown = ", ".join(f"attempt {step['attempt']} by {step['worker']}: {step['outcome']}" for step in seen)
        found = [step["outcome"] for step in seen]
        exercise.prove(f"{activity}: {shown}", holds=[found[0], found[-1]] == outcomes)


async def _temporal_run(exercise: Exercise, run: UUID) -> str:
    return str(
        await exercise.database.fetchval("SELECT temporal_run_id FROM agent_ops.agent_runs WHERE run_id = $1", run)
    )


async def run_exercise(folder: StackFolder) -> int:
    """The exercise on the stack of this folder; the exit status."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    ports: dict[str, int] = json.loads((folder.path / "ports.json").read_text())
    wiring = Wiring(folder, ports)
    os.environ |= {name: value for name, value in wiring.service("underwriting_api").items() if "TEMPORAL" in name}
    keys = json.loads(wiring.service("underwriting_api")["LOCKKEEPER_UNDERWRITING_API_PAYLOAD_KEYS"])
    settings = ApiSettings(task_queue=f"crash-demo-{uuid4()}", payload_keys=keys, answer_seconds=2)
    pool = Database(wiring.role_url("underwriting_api"), name="crash-demo", size=2)
    await pool.open()
    owner = await asyncpg.connect(wiring.owner_url)
    storage = ApiStorage(pool)
    exercise = Exercise(
        wiring, storage, Delivery(storage, TemporalGateway(settings), settings), owner, settings.task_queue
    )
    try:
        await tell(exercise)
    except TimeoutError as error:
        exercise.failures.append(str(error))
    finally:
        for worker in exercise.workers:
            worker.kill()
            worker.wait()
        await owner.close()
        await pool.close()
    for failure in exercise.failures:
        click.echo(f"dev: crash-demo: {failure}", err=True)
    return 1 if exercise.failures else 0


def main(data: Path) -> None:
    """Run the exercise and leave with its status; a stack that was started for it is stopped again."""
    from deploy.local import stack

    folder = StackFolder(data)
    folder.make()
    started = folder.read_stack() is None
    status = 1
    try:
        if started:
            status = stack.start_detached(folder, 8700, NEEDED.split(","))
            if status:
                sys.exit(status)
        status = asyncio.run(run_exercise(folder))
    finally:
        if started:
            with suppress(ProcessLookupError):
                stack.stop_running(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    # Short-lived Temporal clients may crash in the interpreter's own end, after all is done.
    os._exit(status)
