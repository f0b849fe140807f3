from __future__ import annotations

from uuid import uuid4

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from shared.contract.underwriting import DECIDE_SIGNAL, DECIDE_UPDATE, Receipt
from shared.testing.wait import until
from tests.support.underwriting import Underwriting, gather_all, says


async def refusal(desk: Underwriting, run: object, word: str = "approve", **named: object) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await desk.decide(run, word, **named)  # type: ignore[arg-type]
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    return str(cause.type)


async def test_t_02_an_early_decision_for_the_right_review_is_kept_and_used(desk: Underwriting) -> None:
    run = await desk.start()
    decision = await desk.signal(run)
    async with desk.worker():
        assert await desk.handle(run).result() == "approved"
    decisions = await desk.rows("agent_review_decisions", run)
    assert [(each["decision_id"], each["path"], each["status"]) for each in decisions] == [
        (decision, "signal", "accepted")
    ]
    assert (await desk.row(run))["recommendation"]["recommendation"] == "refer", (
        "the evidence was gathered all the same"
    )


async def test_t_02_an_old_approval_sent_again_in_the_next_turn_changes_nothing(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
        await desk.decide(run, "request_more_info", note="why?")
        await desk.reaches(run, "awaiting_review", turn=2)
        assert await refusal(desk, run, turn=1) == "stale_review"
        stale = await desk.signal(run, turn=1)
        await until(lambda: _is_refused(desk, run, stale))
        assert (await desk.row(run))["state"] == "awaiting_review"
        kept = uuid4()
        first = await desk.decide(run, turn=2, decision_id=kept)
        assert await desk.handle(run).result() == "approved"
        again = await desk.decide(run, turn=2, decision_id=kept)
        assert first == again
    statuses = [
        (each["status"], each["refusal"]) for each in await desk.rows("agent_review_decisions", run, "received_at")
    ]
    assert statuses == [("accepted", None), ("refused", "stale_review"), ("accepted", None)]


async def _is_refused(desk: Underwriting, run: object, decision: object) -> bool:
    rows = await desk.rows("agent_review_decisions", run)  # type: ignore[arg-type]
    return any(row["decision_id"] == decision and row["status"] == "refused" for row in rows)


async def test_the_last_turn_cannot_ask_for_more(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start(turn_limit=1)
        await desk.reaches(run, "awaiting_review")
        assert await refusal(desk, run, "request_more_info") == "turn_limit_reached"
        await desk.decide(run, "deny")
        assert await desk.handle(run).result() == "denied"


async def test_four_eyes_take_two_people_and_not_who_asked(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start(four_eyes=True)
        await desk.reaches(run, "awaiting_review")
        assert await refusal(desk, run, reviewer="loan-desk") == "own_request"
        assert (await desk.decide(run, reviewer="reviewer-1")).effect == "first_approval"
        assert await refusal(desk, run, reviewer="reviewer-1") == "same_reviewer"
        assert (await desk.decide(run, reviewer="reviewer-2")).effect == "decided"
        assert await desk.handle(run).result() == "approved"
    effects = [each["effect"] for each in await desk.rows("agent_review_decisions", run, "decided_at")]
    assert effects == ["first_approval", "decided"]


async def test_t_04_fifty_decisions_while_the_run_ends_all_have_an_outcome(desk: Underwriting) -> None:
    run = await desk.start()
    decisions = [desk.decision(run, "approve", reviewer=f"reviewer-{n}") for n in range(50)]
    handle = desk.handle(run)
    async with desk.worker():
        await desk.reaches(run, "awaiting_review")
        for decision in decisions[:10]:
            await handle.signal(DECIDE_SIGNAL, decision)
        sent = 10 + sum(
            not isinstance(answer, BaseException)
            for answer in await gather_all([handle.signal(DECIDE_SIGNAL, each) for each in decisions[10:]])
        )
        assert await handle.result() == "approved"
    rows = await desk.rows("agent_review_decisions", run)
    assert len(rows) == sent, "what Temporal took has its row; the others were told that the run had ended"
    assert sum(row["effect"] == "decided" for row in rows) == 1
    assert {row["refusal"] for row in rows if row["status"] == "refused"} <= {"already_decided", "run_ended"}


async def test_a_question_goes_to_the_model_and_the_answer_comes_back(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
        await desk.decide(run, "request_more_info", note="Verify the income again, please.")
        await desk.reaches(run, "awaiting_review", turn=2)
    said = [message["content"] for message in desk.model.asked[1]["messages"] if message["role"] == "user"]
    assert said[-1] == "The reviewer reviewer-1 asks for more information: Verify the income again, please."
    calls = await desk.rows("agent_tool_calls", run, "turn, position")
    assert [call["tool"] for call in calls if call["turn"] == 2] == ["policy_lookup", "income_verification"]


async def test_an_unknown_word_and_a_broken_signal_leave_the_run_alone(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start()
        await desk.reaches(run, "awaiting_review")
        await desk.handle(run).signal(DECIDE_SIGNAL, {"decision": "maybe"})
        with pytest.raises(WorkflowUpdateFailedError):
            await desk.handle(run).execute_update(DECIDE_UPDATE, {"decision": "maybe"}, result_type=Receipt)
        await desk.decide(run)
        assert await desk.handle(run).result() == "approved"


async def test_one_id_used_for_two_things_does_not_harm_the_run(desk: Underwriting) -> None:
    async with desk.worker():
        run = await desk.start(turn_limit=1)
        await desk.reaches(run, "awaiting_review")
        used = await desk.signal(run, "request_more_info")
        await until(lambda: _is_refused(desk, run, used))
        await desk.signal(run, "approve", decision_id=used)
        assert await desk.handle(run).result() == "approved"
    events = [event["name"] for event in await desk.rows("events", run)]
    assert "agent.decision_conflict" in events


async def test_t_13_what_cannot_be_read_is_asked_again_and_then_referred(desk: Underwriting) -> None:
    desk.model.script = [
        says("Approve, I would say."),
        says(""),
        says('{"recommendation": "perhaps", "reasons": ["x"]}'),
    ]
    async with desk.worker():
        run = await desk.start()
        row = await desk.reaches(run, "awaiting_review")
    assert (row["recommendation"]["recommendation"], row["recommendation"]["fallback"]) == ("refer", "unusable_answer")
    assert len(desk.model.asked) == 3
    assert "could not be used" in desk.model.asked[1]["messages"][-1]["content"]
    answers = [
        message for message in await desk.rows("agent_messages", run, "position") if message["role"] == "assistant"
    ]
    assert answers[0]["raw"]["content"] == "Approve, I would say."
