from __future__ import annotations

import asyncio
import json
from typing import Any, Self
from uuid import uuid4

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.underwriting_worker.app import Parts
from shared.contract.errors import TransientError
from shared.runtime.http import HttpServer
from shared.testing.wait import until
from tests.support.underwriting import Underwriting, fails, recommends, says


def hangs(seconds: float) -> Any:
    async def reply(body: dict[str, Any]) -> Response:
        await asyncio.sleep(seconds)
        return says("too late")(body)

    return reply


async def attempts(desk: Underwriting, run: Any, activity: str) -> list[tuple[int, str, str | None]]:
    rows = [row for row in await desk.rows("metrics", run, "fence") if row["activity"] == activity]
    return [(row["attempt"], row["outcome"], (row["error"] or {}).get("type")) for row in rows]


async def test_t_01_a_hung_model_call_leaves_room_for_the_next_attempt(desk: Underwriting) -> None:
    desk.model.script = [hangs(20)]
    async with desk.worker(model_seconds=2):
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["recommendation"]["source"] == "model"
    first, *_, last = await attempts(desk, run, "call_model")
    assert first == (1, "failed", "model_unavailable")
    assert last[0] > 1
    assert last[1] == "succeeded"


async def test_t_01_when_every_attempt_fails_the_last_real_error_is_kept(desk: Underwriting) -> None:
    desk.model.script = [fails(503, retry_after="0") for _ in range(3)] + [fails(500, retry_after="0")]
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["recommendation"]["fallback"] == "model_unavailable"
    assert "answered 500" in row["recommendation"]["summary"]
    assert [each[:2] for each in await attempts(desk, run, "call_model")] == [(n, "failed") for n in (1, 2, 3, 4)]
    answer = (await desk.rows("agent_messages", run, "position"))[-1]
    assert (answer["state"], answer["error"]["reason"]) == ("failed", "model_unavailable")


async def test_t_14_a_throttled_call_waits_as_long_as_it_is_told(desk: Underwriting) -> None:
    desk.model.script = [fails(429, retry_after_ms="2500")]
    async with desk.worker():
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
    first, second = [row for row in await desk.rows("metrics", run, "fence") if row["activity"] == "call_model"]
    assert first["error"]["type"] == "model_throttled"
    assert (second["started_at"] - first["finished_at"]).total_seconds() >= 2.4


async def test_t_14_a_refused_call_is_not_repeated(desk: Underwriting) -> None:
    desk.model.script = [fails(401)]
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["recommendation"]["fallback"] == "model_access_denied"
    assert await attempts(desk, run, "call_model") == [(1, "failed", "model_access_denied")]


async def test_a_model_that_asks_for_tools_without_end_gets_a_last_word(desk: Underwriting) -> None:
    ask = {"id": "c", "type": "function", "function": {"name": "credit_check", "arguments": "{}"}}
    desk.model.script = [says({"role": "assistant", "content": "", "tool_calls": [ask]}) for _ in range(6)]
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["recommendation"]["fallback"] == "unusable_answer"
    calls = await desk.rows("agent_tool_calls", run)
    assert sum(call["tool"] == "credit_check" for call in calls) == 4, "one of the plan, three asked for"


async def test_an_approval_against_the_policy_becomes_a_referral(desk: Underwriting) -> None:
    desk.model.script = [
        recommends({"recommendation": "APPROVE", "reasons": [{"text": "nice", "cites": ["credit_check"]}]})
    ]
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["recommendation"]["recommendation"] == "refer"
    assert row["recommendation"]["overruled"]["model_said"] == "approve"


class Bureau:
    """A source of files that can be slow, broken or too talkative; it counts inquiries by their id."""

    def __init__(self) -> None:
        self.answers: list[Response] = []
        self.inquiries: list[str] = []
        routes = [Route("/credit/{name}", self._credit), Route("/income/{name}", self._income)]
        self.server = HttpServer(Starlette(routes=routes), "127.0.0.1", 0, grace_seconds=1)
        self.padding = 0

    async def _credit(self, request: Request) -> Response:
        self.inquiries.append(request.headers["Idempotency-Key"])
        if self.answers:
            return self.answers.pop(0)
        notes = "x" * self.padding
        return JSONResponse({"score": "700", "monthly_debt": 900, "delinquencies": [], "notes": notes})

    async def _income(self, _: Request) -> Response:
        return JSONResponse({"annual_income": 80_000})

    async def __aenter__(self) -> Self:
        await self.server.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


async def test_a_tool_that_recovers_is_one_call_with_its_attempts_visible(desk: Underwriting) -> None:
    async with Bureau() as bureau, desk.worker(evidence_url=bureau.url):
        bureau.answers = [JSONResponse({}, 503), JSONResponse({}, 500)]
        run = await desk.start()
        await until(lambda: _condition(desk, run, "retrying_activity"))
        row = await desk.reaches(run, "awaiting_review")
        assert (row["recommendation"]["recommendation"], row["failed_tools"]) == ("approve", 0)
        assert len(set(bureau.inquiries)) == 1, "three requests, one inquiry"
    assert [each[:2] for each in await attempts(desk, run, "credit_check")] == [
        (1, "failed"), (2, "failed"), (3, "succeeded"),
    ]  # fmt: skip
    assert len([call for call in await desk.rows("agent_tool_calls", run) if call["tool"] == "credit_check"]) == 1


async def _condition(desk: Underwriting, run: Any, condition: str) -> bool:
    return bool((await desk.row(run))["condition"] == condition)


async def test_a_tool_that_fails_for_good_is_seen_and_leads_to_a_person(desk: Underwriting) -> None:
    async with Bureau() as bureau, desk.worker(evidence_url=bureau.url):
        bureau.answers = [JSONResponse({}, 503) for _ in range(3)]
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert (row["recommendation"]["recommendation"], row["failed_tools"]) == ("refer", 2)
    failed = next(call for call in await desk.rows("agent_tool_calls", run) if call["tool"] == "credit_check")
    assert failed["error"] == {"reason": "source_unavailable", "message": "the credit service answered 503"}


async def test_t_07_a_large_report_stays_in_the_record_and_a_huge_one_fails_clearly(desk: Underwriting) -> None:
    async with Bureau() as bureau, desk.worker(evidence_url=bureau.url):
        bureau.padding = 3_000_000
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
        assert row["recommendation"]["recommendation"] == "approve"
        prompt = json.dumps(desk.model.asked[-1])
        assert len(prompt) < 100_000, "the model is shown what fits"
        bureau.padding = 5_000_000
        other = await desk.start()
        row = await desk.reaches(other, "awaiting_review")
        assert row["failed_tools"] == 2
    history = await desk.handle(run).fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 200_000, "ids travel, not reports"
    call = next(call for call in await desk.rows("agent_tool_calls", other) if call["tool"] == "credit_check")
    assert call["error"]["reason"] == "result_too_large"
    assert await attempts(desk, other, "credit_check") == [(1, "failed", "result_too_large")]
    sizes = [each["payload_bytes"] for each in await desk.rows("metrics", run) if each["activity"] == "credit_check"]
    assert sizes[0] > 3_000_000


async def test_t_07_a_model_answer_of_two_megabytes_is_a_clear_failure(desk: Underwriting) -> None:
    desk.model.script = [says("x" * 2_500_000)]
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert row["recommendation"]["fallback"] == "answer_too_large"


async def test_a_database_that_is_away_holds_the_run_and_loses_nothing(desk: Underwriting) -> None:
    """The role loses its right to log in and its sessions: what an outage looks like from the worker."""
    owner = desk.database.owner
    async with desk.worker() as parts:
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
        await _cut(desk, parts)
        await desk.signal(run, "request_more_info", note="after the outage")
        await until(lambda: _holds(desk, run), seconds=40)
        await owner.execute("ALTER ROLE lockkeeper_underwriting_worker CONNECTION LIMIT -1")
        await desk.reaches(run, "awaiting_review", turn=2, seconds=50)
        await desk.decide(run, turn=2)
        assert await desk.handle(run).result() == "approved"
    decisions = await desk.rows("agent_review_decisions", run, "received_at")
    assert [(each["decision"], each["status"]) for each in decisions] == [
        ("request_more_info", "accepted"), ("approve", "accepted"),
    ]  # fmt: skip
    calls = await desk.rows("agent_tool_calls", run)
    assert len({call["tool_call_id"] for call in calls}) == len(calls) == 5


async def _cut(desk: Underwriting, parts: Parts) -> None:
    owner = desk.database.owner
    await owner.execute("ALTER ROLE lockkeeper_underwriting_worker CONNECTION LIMIT 0")
    await owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'lockkeeper_underwriting_worker' "
        "AND datname = current_database()"
    )
    with pytest.raises(TransientError, match="not available"):
        await parts.storage.list_messages(uuid4())


async def _holds(desk: Underwriting, run: Any) -> bool:
    """Whether Temporal itself shows that the record is being tried again."""
    found = await desk.handle(run).describe()
    return any(each.attempt >= 3 for each in found.raw_description.pending_activities)
