"""What a test of the underwriter needs: a model to script, workers to start, runs to watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy

from deploy.local.workspace.stand_in import underwriting as stand_in
from services.underwriting_api.gateways import TemporalGateway
from services.underwriting_api.loops import Delivery
from services.underwriting_api.settings import ApiSettings
from services.underwriting_api.storage import ApiStorage
from services.underwriting_worker.app import Parts
from services.underwriting_worker.settings import WorkerSettings
from services.underwriting_worker.workflows import LoanUnderwritingWorkflow
from shared.contract.underwriting import (
    DECIDE_SIGNAL,
    DECIDE_UPDATE,
    WORKFLOW,
    Decision,
    LoanRequest,
    Pace,
    Receipt,
    RunStart,
    review_id,
    workflow_id,
)
from shared.contract.underwriting_samples import SAMPLES, Sample
from shared.db.pool import Database
from shared.runtime.http import HttpServer
from shared.testing.wait import until
from shared.vendors.temporal import data_converter
from tests.conftest import TestDatabase

Reply = Callable[[dict[str, Any]], Awaitable[Response] | Response]
FAST = Pace(tool_heartbeat=timedelta(seconds=1), model_heartbeat=timedelta(seconds=1))


class ModelDouble:
    """An OpenAI-protocol endpoint: the stand-in's answers, unless the next ones are scripted."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.asked: list[dict[str, Any]] = []
        app = Starlette(routes=[Route("/chat/completions", self._chat, methods=["POST"])])
        self._server = HttpServer(app, "127.0.0.1", 0, grace_seconds=1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def open(self) -> None:
        await self._server.open()

    async def close(self) -> None:
        await self._server.close()

    async def _chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(body)
        if self.script:
            reply = self.script.pop(0)(body)
            return reply if isinstance(reply, Response) else await reply
        return says(stand_in.answer(body["messages"], body["tools"]))(body)


def says(message: dict[str, Any] | str, finish: str = "stop") -> Callable[[dict[str, Any]], Response]:
    """A reply with this message."""
    given = {"role": "assistant", "content": message} if isinstance(message, str) else message

    def reply(body: dict[str, Any]) -> Response:
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choice = {"index": 0, "message": given, "finish_reason": finish}
        return JSONResponse({"model": body["model"], "choices": [choice], "usage": usage})

    return reply


def recommends(arguments: object, **more: Any) -> Callable[[dict[str, Any]], Response]:
    """A reply that submits a recommendation."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": "c1", "type": "function", "function": {"name": stand_in.SUBMIT, "arguments": text}}
    return says({"role": "assistant", "content": None, "tool_calls": [call], **more})


def fails(status: int, **headers: str) -> Callable[[dict[str, Any]], Response]:
    """An error reply."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: JSONResponse({"error": {"message": "made by a test"}}, status, headers=named)


@dataclass
class Underwriting:
    """One test's underwriter: its database, its task queue, its model."""

    database: TestDatabase
    client: Client
    model: ModelDouble
    pool: Database
    queue: str = field(default_factory=lambda: f"test-{uuid4()}")
    settings: dict[str, Any] = field(default_factory=dict)
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The superuser's connection takes one statement at a time."""

    def parts(self, **settings: Any) -> Parts:
        """The worker's parts with test settings."""
        given = {
            "task_queue": self.queue, "model_url": self.model.url, "model_key": "test", "sticky_seconds": 1,
            "search_attributes": False, **self.settings, **settings,
        }  # fmt: skip
        return Parts(self.pool, "test-worker", WorkerSettings(**given))

    @asynccontextmanager
    async def worker(self, workflow: type = LoanUnderwritingWorkflow, **settings: Any) -> AsyncIterator[Parts]:
        """A running worker in this process."""
        parts = self.parts(**settings)
        async with parts.worker(self.client, workflow=workflow):
            yield parts
        await parts.close()

    async def insert(self, sample: Sample = SAMPLES[0], **changes: Any) -> tuple[UUID, LoanRequest]:
        """The run's row, as the API writes it."""
        run = uuid4()
        request = LoanRequest(
            **{
                "user": "loan-desk", "applicant": sample.applicant, "amount": sample.amount, "purpose": sample.purpose,
                "stated_annual_income": sample.stated_income, **changes,
            }
        )  # fmt: skip
        async with self.looking:
            await self.database.owner.execute(
                "INSERT INTO agent_ops.agent_runs (run_id, workflow_id, user_name, applicant, amount, purpose, model, "
                "turn_limit, request, request_digest) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, '')",
                run, workflow_id(run), request.user, request.applicant, request.amount, request.purpose,
                request.model, request.turn_limit, request.model_dump(mode="json"),
            )  # fmt: skip
        return run, request

    async def start(self, sample: Sample = SAMPLES[0], *, pace: Pace = FAST, **changes: Any) -> UUID:
        """A started run."""
        run, request = await self.insert(sample, **changes)
        await self.begin(run, request, pace)
        return run

    async def begin(self, run: UUID, request: LoanRequest, pace: Pace = FAST) -> WorkflowHandle[Any, Any]:
        """Start the workflow of a run that has its row."""
        start = RunStart(
            run_id=run, requester=request.user, purpose=request.purpose, turn_limit=request.turn_limit,
            four_eyes=request.four_eyes, pace=pace,
        )  # fmt: skip
        return await self.client.start_workflow(
            WORKFLOW, start, id=workflow_id(run), task_queue=self.queue, result_type=str,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )  # fmt: skip

    def handle(self, run: UUID) -> WorkflowHandle[Any, str]:
        return self.client.get_workflow_handle(workflow_id(run), result_type=str)

    async def decide(
        self, run: UUID, word: str = "approve", *, turn: int = 1, reviewer: str = "reviewer-1", note: str = "",
        decision_id: UUID | None = None,
    ) -> Receipt:  # fmt: skip
        """Send a decision as an update. Raises WorkflowUpdateFailedError when it is refused."""
        decision = self.decision(run, word, turn=turn, reviewer=reviewer, note=note, decision_id=decision_id)
        return await self.handle(run).execute_update(
            DECIDE_UPDATE, decision, id=str(decision.decision_id), result_type=Receipt
        )

    async def signal(self, run: UUID, word: str = "approve", **named: Any) -> UUID:
        """Send a decision as a signal."""
        decision = self.decision(run, word, **named)
        await self.handle(run).signal(DECIDE_SIGNAL, decision)
        return decision.decision_id

    def decision(
        self, run: UUID, word: str, *, turn: int = 1, reviewer: str = "reviewer-1", note: str = "",
        decision_id: UUID | None = None,
    ) -> Decision:  # fmt: skip
        return Decision.model_validate(
            {
                "decision_id": decision_id or uuid4(), "review_id": review_id(run, turn), "decision": word,
                "reviewer": reviewer, "note": note,
            }
        )  # fmt: skip

    async def row(self, run: UUID) -> dict[str, Any]:
        async with self.looking:
            found = await self.database.owner.fetchrow("SELECT * FROM agent_ops.run_overview WHERE run_id = $1", run)
        assert found is not None
        return dict(found)

    async def rows(self, table: str, run: UUID, order: str = "1") -> list[dict[str, Any]]:
        async with self.looking:
            found = await self.database.owner.fetch(
                f"SELECT * FROM agent_ops.{table} WHERE run_id = $1 ORDER BY {order}", run
            )
        return [dict(row) for row in found]

    async def reaches(self, run: UUID, state: str, *, turn: int = 1, seconds: float = 30) -> dict[str, Any]:
        """The run's row once it is in this state at this turn."""

        async def there() -> dict[str, Any] | None:
            row = await self.row(run)
            return row if row["state"] == state and row["turn"] >= turn else None

        found = await until(there, seconds=seconds)
        assert found is not None
        return found


BASE = "/api/v1/underwriting"


@dataclass
class Api:
    """The API in this process, and its parts."""

    http: httpx.AsyncClient
    storage: ApiStorage
    temporal: TemporalGateway
    delivery: Delivery
    settings: ApiSettings

    async def start(self, sample: Sample = SAMPLES[0], *, key: str | None = None, **changes: Any) -> httpx.Response:
        body = {
            "user": "loan-desk",
            "applicant": sample.applicant,
            "amount": str(sample.amount),
            "purpose": sample.purpose,
        }
        return await self.http.post(
            f"{BASE}/runs", json=body | changes, headers={} if key is None else {"Idempotency-Key": key}
        )

    async def decide(self, run: UUID | str, word: str = "approve", *, turn: int = 1, **changes: Any) -> httpx.Response:
        review = review_id(UUID(str(run)), turn)
        body = {"decision": word, "reviewer": "reviewer-1", **changes}
        return await self.http.post(f"{BASE}/runs/{run}/reviews/{review}/decision", json=body)

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = await self.http.get(f"{BASE}/{path}", params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def underwriting(
    database: TestDatabase, address: str, keys: dict[str, str] | None = None
) -> AsyncIterator[Underwriting]:
    """An underwriter without a worker yet."""
    model = ModelDouble()
    await model.open()
    pool = await database.open("underwriting_worker", size=8)
    client = await Client.connect(address, data_converter=data_converter(keys))
    try:
        yield Underwriting(database, client, model, pool)
    finally:
        await pool.close()
        await model.close()


async def gather_all(work: Sequence[Awaitable[Any]]) -> list[Any]:
    """The results, or the errors, of all of them at once."""
    return await asyncio.gather(*work, return_exceptions=True)
