"""What the kit promises around any handler: one end per attempt, told until it is settled."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any
from uuid import UUID, uuid4

import pytest

from examples.word_count_agent import main as count_words
from shared.agent_kit import AgentContext, AgentResult, RejectedError, TransientError, run_agent
from shared.testing import pdfs
from shared.testing.wait import until
from tests.support.agents import AgentWorld
from tests.support.callbacks import Received
from tests.support.statements import ROOT

pytestmark = pytest.mark.timeout(120)
LETTER = pdfs.text_pdf(["three small words"], ["and four words more"])


async def carry(world: AgentWorld, handler: Any, **task: Any) -> tuple[UUID, Received]:
    attempt_id = await world.attempt(input={"n": 1}, **task)
    return attempt_id, await world.run(lambda argv: run_agent(handler, argv), attempt_id)


async def test_the_agent_of_the_readme_counts_words(world: AgentWorld) -> None:
    attempt_id = await world.attempt(LETTER)
    end = await world.run(count_words, attempt_id)
    assert (end.verb, end.body["pages"], end.body["result"]["words"]) == ("result", 2, 7)
    assert end.body["result_stored"] is True
    assert end.body["usage"][0]["model"] == "rule-based-stand-in"
    stored = await world.stored(attempt_id)
    assert stored["result"] == end.body["result"]
    assert stored["report"]["usage"] == [{**end.body["usage"][0], "cost": None}]


async def test_a_handler_sees_its_input_and_options_and_may_be_a_plain_function(world: AgentWorld) -> None:
    def handler(context: AgentContext) -> AgentResult:
        return AgentResult({"input": context.input, "options": context.options}, confidence=0.5)

    _, end = await carry(world, handler, options={"depth": 3}, customer="acme")
    assert end.body["result"] == {"input": {"n": 1}, "options": {"depth": 3}}
    assert end.body["confidence"] == 0.5


async def test_an_error_of_the_handler_is_a_failure_without_its_stack(world: AgentWorld) -> None:
    async def handler(_: AgentContext) -> AgentResult:
        raise KeyError("secret detail")

    _, end = await carry(world, handler)
    assert (end.verb, end.body["reason"], end.body["retryable"]) == ("failure", "agent_error", True)
    assert "KeyError" in end.body["message"]
    assert "secret" not in end.body["message"]


async def test_rejected_is_for_good_and_transient_says_when_to_try_again(world: AgentWorld) -> None:
    async def rejects(_: AgentContext) -> AgentResult:
        raise RejectedError("the form is \x00 empty", reason="form_empty")

    async def waits(_: AgentContext) -> AgentResult:
        raise TransientError("come back later", reason="registry_closed", retry_after_seconds=90)

    _, end = await carry(world, rejects)
    assert (end.body["reason"], end.body["retryable"], end.body["message"]) == (
        "form_empty",
        False,
        "the form is  empty",
    )
    _, end = await carry(world, waits)
    assert (end.body["reason"], end.body["retryable"], end.body["retry_after_seconds"]) == ("registry_closed", True, 90)


async def test_p01_p02_a_result_is_cleaned_and_what_was_dropped_is_counted(world: AgentWorld) -> None:
    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({"a\x00": "b\ud800c", "n": float("nan")}, cleaned_characters=2)

    attempt_id, end = await carry(world, handler)
    assert end.body["result"] == {"a": "bc", "n": None}
    assert end.body["cleaned_characters"] == 5
    assert (await world.stored(attempt_id))["result"] == {"a": "bc", "n": None}


async def test_n02_a_large_result_travels_by_reference(world: AgentWorld) -> None:
    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({"text": "ü" * 100_000})

    attempt_id, end = await carry(world, handler)
    assert "result" not in end.body
    assert end.body["result_stored"] is True
    assert len((await world.stored(attempt_id))["result"]["text"]) == 100_000


async def test_a_busy_receiver_is_asked_again_until_it_answers(world: AgentWorld) -> None:
    seen: list[Received] = []

    def busy(received: Received) -> tuple[int, dict[str, Any], dict[str, str]] | None:
        seen.append(received)
        return (503, {}, {"Retry-After": "0"}) if len(seen) < 4 else None

    world.recorder.answers = busy

    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({})

    attempt_id = await world.attempt(input={})
    assert await asyncio.to_thread(run_agent, handler, [f"--attempt_id={attempt_id}"]) == 0
    bodies = [each.body for each in world.recorder.ends(attempt_id)]
    assert len(bodies) == 4
    assert all(body == bodies[0] for body in bodies)


@pytest.mark.parametrize("status", [401, 404, 422])
async def test_a_refusal_is_not_argued_with_and_fails_the_run(world: AgentWorld, status: int) -> None:
    world.recorder.answers = lambda _: (status, {"title": "no"}, {})

    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({})

    attempt_id = await world.attempt(input={})
    with pytest.raises(SystemExit, match=str(status)):
        await asyncio.to_thread(run_agent, handler, [f"--attempt_id={attempt_id}"])
    assert len(world.recorder.ends(attempt_id)) == 1
    assert (await world.stored(attempt_id))["result"] == {}


async def test_a_receiver_that_stays_away_fails_the_run_but_the_result_is_kept(world: AgentWorld) -> None:
    world.recorder.answers = lambda _: (503, {}, {})
    world.configure(LOCKKEEPER_CALLBACK_DEADLINE_SECONDS=1)

    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({"kept": True})

    attempt_id = await world.attempt(input={})
    with pytest.raises(SystemExit, match="not settled"):
        await asyncio.to_thread(run_agent, handler, [f"--attempt_id={attempt_id}"])
    assert (await world.stored(attempt_id))["result"] == {"kept": True}


async def test_progress_is_told_and_keeps_the_lease(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PROGRESS_SECONDS=0.05, LOCKKEEPER_AGENT_HEARTBEAT_SECONDS=0.1)

    def handler(context: AgentContext) -> AgentResult:  # blocks, as libraries do: the heart beats all the same
        context.heartbeat(1, 7, "reading")
        deadline = time.monotonic() + 30
        while len(world.recorder.received) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        return AgentResult({})

    attempt_id, _ = await carry(world, handler)
    beats = world.recorder.beats(attempt_id)
    assert len(beats) >= 3
    assert beats[-1] == {"pages_done": 1, "pages_total": 7, "step": "reading"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [({"outcome": "running", "cancel_requested": True}, "cancelled"), ({"outcome": "superseded"}, "superseded")],
)
async def test_a_heartbeat_that_is_told_to_stop_stops_the_work(
    world: AgentWorld, answer: dict[str, Any], reason: str
) -> None:
    world.configure(LOCKKEEPER_AGENT_PROGRESS_SECONDS=0.05)
    world.recorder.answers = lambda received: (200, answer, {}) if received.verb == "heartbeat" else None
    begun = asyncio.Event()

    async def handler(_: AgentContext) -> AgentResult:
        begun.set()
        await asyncio.Event().wait()
        return AgentResult({})

    _, end = await carry(world, handler)
    assert begun.is_set()
    assert (end.verb, end.body["reason"], end.body["retryable"]) == ("failure", reason, False)


@pytest.mark.parametrize("status", [500, 401])
async def test_a_lost_heartbeat_does_not_stop_the_work(world: AgentWorld, status: int) -> None:
    world.configure(LOCKKEEPER_AGENT_PROGRESS_SECONDS=0.05, LOCKKEEPER_AGENT_HEARTBEAT_SECONDS=0.1)
    world.recorder.answers = lambda received: (status, {}, {}) if received.verb == "heartbeat" else None

    async def handler(_: AgentContext) -> AgentResult:
        await until(lambda: len(world.recorder.received) >= 2)
        return AgentResult({})

    _, end = await carry(world, handler)
    assert end.verb == "result"


async def test_an_attempt_that_nobody_wants_any_more_is_not_begun(world: AgentWorld) -> None:
    attempt_id = await world.attempt(input={})
    await world.database.owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'cancelled', verb = 'cancel', finished_at = lockkeeper.clock(), "
        "locked_by = NULL, lease_expires_at = NULL, reserved_tpm = 0, version = version + 1"
    )
    begun: list[AgentContext] = []

    def handler(context: AgentContext) -> AgentResult:
        begun.append(context)
        return AgentResult({})

    assert await asyncio.to_thread(run_agent, handler, [f"--attempt_id={attempt_id}"]) == 0
    assert begun == []
    assert world.recorder.received == []


async def test_an_unknown_attempt_fails_the_run(world: AgentWorld) -> None:
    with pytest.raises(SystemExit, match="no such attempt"):
        await asyncio.to_thread(run_agent, lambda _: AgentResult({}), [f"--attempt_id={uuid4()}"])


async def test_an_attempt_carried_twice_keeps_its_first_result(world: AgentWorld) -> None:
    counter = iter(range(10))

    async def handler(_: AgentContext) -> AgentResult:
        return AgentResult({"n": next(counter)})

    attempt_id = await world.attempt(input={})
    for _ in range(2):
        await asyncio.to_thread(run_agent, handler, [f"--attempt_id={attempt_id}"])
    assert (await world.stored(attempt_id))["result"] == {"n": 0}


async def test_missing_settings_are_named_in_one_line(world: AgentWorld) -> None:
    world.environment.delenv("LOCKKEEPER_CALLBACK_KEY")
    with pytest.raises(SystemExit, match="callback_key"):
        await asyncio.to_thread(run_agent, lambda _: AgentResult({}), [f"--attempt_id={uuid4()}"])


async def test_m01_a_stopped_run_says_so_and_what_it_had_spent(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PROGRESS_SECONDS=0.1, LOCKKEEPER_MODEL_SECONDS=60)
    world.double.fault("serving.chat", "hang", seconds=60)
    attempt_id = await world.attempt(LETTER)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.word_count_agent", f"--attempt_id={attempt_id}", cwd=ROOT, env=dict(os.environ),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await until(lambda: any(beat.get("pages_done") == 2 for beat in world.recorder.beats(attempt_id)), seconds=60)
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), 30)
    (end,) = world.recorder.ends(attempt_id)
    assert (end.verb, end.body["reason"], end.body["retryable"]) == ("failure", "interrupted", True)


async def test_behind_a_login_a_callback_shows_the_workspaces_token_and_is_signed_all_the_same(
    world: AgentWorld,
) -> None:
    world.configure(LOCKKEEPER_CALLBACK_LOGIN="true")
    _, end = await carry(world, lambda _: AgentResult({}))
    assert end.headers["Authorization"].startswith("Bearer "), "the platform's proxy lets it pass"
    token = end.headers["Authorization"].removeprefix("Bearer ")
    answer = world.double.http.get("/api/2.2/jobs/list", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, "it is a token of the agent's own principal"
    world.configure(LOCKKEEPER_CALLBACK_LOGIN="false")
    _, end = await carry(world, lambda _: AgentResult({}))
    assert "Authorization" not in end.headers
