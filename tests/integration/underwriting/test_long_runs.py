from __future__ import annotations

import base64
import shutil
import sys
from datetime import timedelta
from pathlib import Path

from temporalio.testing import WorkflowEnvironment

from shared.contract.underwriting import Pace
from shared.testing.wait import until
from shared.vendors.temporal import data_converter
from tests.conftest import TestDatabase
from tests.support.temporal import TemporalServer
from tests.support.underwriting import FAST, Underwriting, underwriting
from tests.support.underwriting_fixtures import POLICY

SHORT = FAST.model_copy(update={"continue_after_events": 60})


async def test_t_08_many_turns_and_stale_signals_go_on_in_new_histories(desk: Underwriting) -> None:
    turns, stale_each = 6, 5
    async with desk.worker():
        run = await desk.start(pace=SHORT, turn_limit=turns)
        first = (await desk.handle(run).describe()).run_id
        for turn in range(1, turns):
            await desk.reaches(run, "awaiting_review", turn=turn)
            for _ in range(stale_each):
                await desk.signal(run, turn=turn - 1)
            await desk.decide(run, "request_more_info", turn=turn, note="x" * 2_000)
        await desk.reaches(run, "awaiting_review", turn=turns)
        kept = await desk.handle(run).describe()
        await desk.decide(run, turn=turns)
        assert await desk.handle(run).result() == "approved"
    assert kept.run_id != first, "the history was cut"
    assert (kept.history_length or 0) < 200
    rows = await desk.rows("agent_review_decisions", run)
    assert sum(row["status"] == "refused" for row in rows) == stale_each * (turns - 1)
    assert sum(row["effect"] == "decided" for row in rows) == turns
    reviews = {
        event["details"]["review_id"] for event in await desk.rows("events", run) if "review_id" in event["details"]
    }
    assert len(reviews) == turns


async def test_a_decision_id_is_remembered_across_histories(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start(pace=SHORT, four_eyes=True)
        await desk.reaches(run, "awaiting_review")
        decision = desk.decision(run, "approve")
        first = await desk.decide(run, decision_id=decision.decision_id)
        before = (await desk.handle(run).describe()).run_id
        for _ in range(12):
            await desk.signal(run, turn=7)
        await until(lambda: _continued(desk, run, before))
        again = await desk.decide(run, decision_id=decision.decision_id)
        assert first == again
        assert again.effect == "first_approval"
        await desk.decide(run, reviewer="reviewer-2")
        assert await desk.handle(run).result() == "approved"


async def _continued(desk: Underwriting, run: object, before: str | None) -> bool:
    return (await desk.handle(run).describe()).run_id != before  # type: ignore[arg-type]


async def test_payloads_are_encrypted_and_no_word_of_the_request_is_in_the_history(
    database: TestDatabase, temporal: TemporalServer
) -> None:
    await database.owner.execute(POLICY)
    keys = {"new": base64.b64encode(b"n" * 32).decode(), "old": base64.b64encode(b"o" * 32).decode()}
    async with underwriting(database, temporal.address, keys) as desk, desk.worker():
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
        await desk.decide(run, "deny", note="the secret note", reviewer="reviewer-of-secrets")
        assert await desk.handle(run).result() == "denied"
        history = await desk.handle(run).fetch_history()
    raw = b"".join(event.SerializeToString() for event in history.events)
    for word in (b"secret", b"loan-desk", b"sample-01", b"25000"):
        assert word not in raw
    reader = data_converter({"other": keys["old"], **keys})
    assert reader.payload_codec is not None


async def test_a_month_without_a_decision_is_reminded_of_and_expires(database: TestDatabase) -> None:
    """On the real server, with time skipped for this one workflow."""
    await database.owner.execute(POLICY)
    program = Path(sys.executable).with_name("temporal")
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        data_converter=data_converter(),
        dev_server_existing_path=str(program) if program.exists() else shutil.which("temporal"),
        dev_server_startup_timeout=timedelta(seconds=60),
        dev_server_extra_args=["--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"],
    )
    address = environment.client.service_client.config.target_host
    try:
        async with underwriting(database, address) as desk, desk.worker():
            run = await desk.start(pace=Pace(tool_heartbeat=timedelta(seconds=5)))
            await desk.reaches(run, "awaiting_review")
            await environment.fast_forward(desk.handle(run), timedelta(days=4))
            await until(lambda: _reminded(desk, run), seconds=30)
            assert (await desk.row(run))["state"] == "awaiting_review"
            await environment.fast_forward(desk.handle(run), timedelta(days=27))
            assert await desk.handle(run).result() == "expired"
            row = await desk.row(run)
            assert (row["state"], row["outcome"]) == ("expired", "expired")
            names = [event["name"] for event in await desk.rows("events", run, "at")]
            assert names[-2:] == ["agent.review_reminded", "agent.run_expired"]
    finally:
        await environment.shutdown()


async def _reminded(desk: Underwriting, run: object) -> bool:
    return (await desk.row(run))["review_reminded_at"] is not None  # type: ignore[arg-type]
