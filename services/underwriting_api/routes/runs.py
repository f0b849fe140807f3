"""`/api/v1/underwriting`: requests in, runs out, decisions delivered, and what it all took."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Protocol
from uuid import UUID

import orjson
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from services.underwriting_api import messages
from services.underwriting_api.gateways import TemporalGateway
from services.underwriting_api.messages import DecisionBody, Json, NewRun
from services.underwriting_api.policy import Cursor, differs
from services.underwriting_api.settings import ApiSettings
from services.underwriting_api.storage import ApiStorage, RunFilter, Verdict
from shared.contract.errors import ConflictError, LockkeeperError, MissingError
from shared.contract.ids import uuid7
from shared.contract.text import clean_text
from shared.contract.underwriting import TERMINAL_STATES, Decision, LoanRequest
from shared.identity.people import person_of
from shared.runtime.http import problem

DESCRIBE = {
    409: {"description": "the review is stale, decided, or the run's state forbids it; the refusal is on record"},
    503: {"description": "not available now; see Retry-After"},
}
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]
Words = Annotated[list[str] | None, Query()]


class Delivering(Protocol):
    """What brings things to Temporal."""

    async def start(self, run: UUID, request: LoanRequest, options: Json) -> None:
        """Start the run, now or later."""
        ...

    async def decide(self, run: UUID, decision: Decision) -> Verdict:
        """Deliver the decision, now or later."""
        ...

    async def cancel(self, run: UUID) -> None:
        """Ask the run to end, now or later."""
        ...


class Answer(Response):
    """JSON with decimals and instants as text."""

    media_type = "application/json"

    def __init__(self, content: object, status: int = 200) -> None:
        super().__init__(orjson.dumps(content, default=str), status)


class RunRoutes:
    """The API of runs and reviews."""

    def __init__(
        self, storage: ApiStorage, temporal: TemporalGateway, delivery: Delivering, settings: ApiSettings
    ) -> None:
        self._storage = storage
        self._temporal = temporal
        self._delivery = delivery
        self._settings = settings

    def router(self) -> APIRouter:
        """All paths."""
        router = APIRouter(prefix="/api/v1/underwriting", responses=DESCRIBE)  # type: ignore[arg-type]
        router.add_api_route("/runs", self.start, methods=["POST"], status_code=201, summary="Ask for a loan")
        router.add_api_route("/runs", self.listed, methods=["GET"], summary="Runs, newest first")
        router.add_api_route("/runs/{run_id}", self.detail, methods=["GET"], summary="One run with everything")
        router.add_api_route("/runs/{run_id}/cancel", self.cancel, methods=["POST"], status_code=202)
        router.add_api_route(
            "/runs/{run_id}/reviews/{review_id}/decision", self.decide, methods=["POST"], status_code=202,
            summary="Decide a review: approve, deny or request_more_info",
        )  # fmt: skip
        router.add_api_route("/decisions/{decision_id}", self.decision, methods=["GET"], summary="What became of it")
        router.add_api_route("/metrics/workflow", self.workflow_metrics, methods=["GET"])
        router.add_api_route("/metrics/retries", self.retry_metrics, methods=["GET"])
        router.add_api_route("/policy", self.policy, methods=["GET"], summary="The limits as they are now")
        router.add_api_route("/temporal", self.temporal, methods=["GET"], summary="Whether Temporal answers")
        router.add_api_route("/samples", self.samples, methods=["GET"], summary="Ten requests to try")
        return router

    async def start(self, request: Request, body: NewRun, key: Key = None) -> Response:
        """Take a loan request in. The same key and body give the same run; Temporal may be away meanwhile."""
        given = {**body.model_dump(), "model": body.model or self._settings.model}
        given["user"] = self._person(request, body.user)
        loan = LoanRequest.model_validate(given)
        digest = hashlib.sha256(loan.model_dump_json().encode()).hexdigest()
        run, options = uuid7(), {"pace": self._settings.pace().model_dump(mode="json")}
        if not await self._storage.insert_run(run, loan, options, key, digest):
            return await self._again(key or "", digest)
        await self._delivery.start(run, loan, options)
        return Answer(messages.shown_run(await self._run(run)), 201)

    async def _again(self, key: str, digest: str) -> Response:
        known = await self._storage.find_run_by_key(key)
        if known is None or known["request_digest"] != digest:
            raise ConflictError("this Idempotency-Key belongs to another request", reason="key_in_use")
        return Answer(messages.shown_run(await self._run(known["run_id"])), 200)

    async def listed(
        self,
        *,
        user: Annotated[str | None, Query(max_length=200)] = None,
        state: Words = None,
        condition: Words = None,
        purpose: Annotated[str | None, Query(max_length=100)] = None,
        text: Annotated[str | None, Query(max_length=200)] = None,
        cursor: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> Response:
        """A page of runs with what each is doing now."""
        chosen = RunFilter(user or None, _words(state), _words(condition), purpose or None, text or None)
        before = Cursor.parse(cursor)
        rows = await self._storage.list_runs(chosen, (before.at, before.run), limit + 1)
        page = rows[:limit]
        following = Cursor(page[-1]["created_at"], page[-1]["run_id"]).text() if len(rows) > limit else None
        return Answer({"runs": [messages.shown_run(row) for row in page], "next_cursor": following})

    async def detail(self, run_id: UUID) -> Response:
        """Conversation, evidence, reviews, timeline and attempts; `temporal` is its own view while the run lives."""
        row = await self._run(run_id)
        parts, temporal = await asyncio.gather(self._storage.read_detail(run_id), self._look(row))
        return Answer(messages.shown_detail(row, parts, temporal))

    async def cancel(self, request: Request, run_id: UUID) -> Response:
        """Ask the run to end; what it has gathered stays on record."""
        row = await self._run(run_id)
        if not await self._storage.request_cancel(run_id, self._person(request, "local")):
            raise ConflictError(f"the run has ended: {row['state']}", reason="run_ended")
        await self._delivery.cancel(run_id)
        return Answer(messages.shown_run(await self._run(run_id)), 202)

    async def decide(self, request: Request, run_id: UUID, review_id: UUID, body: DecisionBody) -> Response:
        """Deliver a decision: 202 when it counts or is on its way, 409 with the reason when it changes nothing."""
        row = await self._run(run_id)
        decision = Decision(
            decision_id=body.decision_id or uuid7(), review_id=review_id, decision=body.decision,
            reviewer=self._person(request, body.reviewer or "local"), note=clean_text(body.note)[0],
        )  # fmt: skip
        if not await self._storage.insert_decision(run_id, decision):
            known = await self._decision(decision.decision_id)
            if differs(known, run_id, decision):
                return self._settled(row, await self._refused(run_id, decision, "id_in_use"))
            if known["status"] != "received":
                return self._settled(row, known)
        await self._delivery.decide(run_id, decision)
        return self._settled(row, await self._decision(decision.decision_id))

    async def _refused(self, run_id: UUID, decision: Decision, refusal: str) -> Json:
        """Put a decision on record that is refused before anybody is asked."""
        fresh = decision.model_copy(update={"decision_id": uuid7()})
        await self._storage.insert_decision(run_id, fresh)
        verdict = Verdict("refused", refusal=refusal, message=f"decision id {decision.decision_id}")
        await self._storage.settle_decision(run_id, fresh.decision_id, verdict)
        return await self._decision(fresh.decision_id)

    def _settled(self, run: Json, row: Json) -> Response:
        if row["status"] != "refused":
            return Answer(messages.shown_decision(row), 202)
        said = messages.REFUSALS.get(row["refusal"], "") or row["message"] or ""
        return problem(
            409, "The decision changes nothing", f"{said} {row['message'] or ''}".strip(), reason=row["refusal"],
            decision_id=str(row["decision_id"]), run_id=str(run["run_id"]), state=run["state"],
        )  # fmt: skip

    async def decision(self, decision_id: UUID) -> Response:
        """One decision: received, accepted or refused."""
        return Answer(messages.shown_decision(await self._decision(decision_id)))

    async def workflow_metrics(self, hours: Annotated[float, Query(gt=0, le=24 * 365)] = 24 * 7) -> Response:
        """Counts by state and condition, and durations (p50 and p95 in seconds)."""
        found = await self._storage.workflow_metrics(_since(hours))
        return Answer(found | {"hours": hours})

    async def retry_metrics(self, hours: Annotated[float, Query(gt=0, le=24 * 365)] = 24 * 7) -> Response:
        """Attempts by activity and number, with the last error of each."""
        return Answer({"activities": await self._storage.retry_metrics(_since(hours)), "hours": hours})

    async def policy(self) -> Response:
        """The limits of every purpose; a run shows those that it used."""
        return Answer({"limits": [messages.shown_limits(row) for row in await self._storage.list_limits()]})

    async def temporal(self) -> Response:
        """Whether runs can go on now, and what to do when they cannot."""
        there = await self._temporal.answers()
        return Answer({"available": there, "advice": None if there else messages.WITHOUT_TEMPORAL})

    async def samples(self) -> Response:
        """Sample requests with what the local policy makes of them."""
        return Answer({"samples": messages.shown_samples()})

    async def _run(self, run_id: UUID) -> Json:
        row = await self._storage.read_run(run_id)
        if row is None:
            raise MissingError(f"There is no run {run_id}.")
        return row

    async def _decision(self, decision_id: UUID) -> Json:
        row = await self._storage.read_decision(decision_id)
        if row is None:
            raise MissingError(f"There is no decision {decision_id}.")
        return row

    async def _look(self, row: Json) -> dict[str, Any] | None:
        if row["state"] in TERMINAL_STATES:
            return None
        try:
            return await self._temporal.look(row["run_id"])
        except LockkeeperError as error:
            return {"unavailable": error.reason}

    def _person(self, request: Request, given: str) -> str:
        """Who asks: the person who proved it; where nobody is asked for proof, whom the body names."""
        person = person_of(request)
        return person.name if person.is_proved else clean_text(given)[0].strip()[:200] or person.name


def _words(values: list[str] | None) -> tuple[str, ...]:
    return tuple(word for value in values or () for word in value.split(",") if word)[:20]


def _since(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)
