"""What failed, by reason, and how it is set going again: once, and written down."""

from __future__ import annotations

from services.console.messages.answers import DeadLetters
from tests.integration.console.conftest import Console


async def fail(console: Console, count: int, reason: str, agent: str = "reader") -> None:
    await console.database.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, customer, input, status, verb, finished_at, error, reason) SELECT $3, 'A', "
        "'{}', 'failed', 'fail', now() + n * interval '1 second', jsonb_build_object('reason', $2::text, 'message', "
        "format('number %s', n)), $2 FROM generate_series(1, $1::int) n",
        count, reason, agent,
    )  # fmt: skip


async def test_dead_letters_are_told_by_reason_and_redriven_once(console: Console) -> None:
    await console.make_agent()
    await console.make_agent("writer")
    await fail(console, 3, "no_text")
    await fail(console, 2, "model_unavailable")
    await fail(console, 1, "no_text", "writer")
    letters = await console.get("/dead-letters")
    DeadLetters.model_validate(letters)
    said = [(each["agent"], each["reason"], each["tasks"], each["message"]) for each in letters["dead_letters"]]
    assert said == [
        ("reader", "no_text", 3, "number 3"),
        ("reader", "model_unavailable", 2, "number 2"),
        ("writer", "no_text", 1, "number 1"),
    ]
    assert [each["agent"] for each in (await console.get("/dead-letters?agent=writer"))["dead_letters"]] == ["writer"]
    assert (await console.get("/dead-letters?to=2020-01-01T00:00:00Z"))["dead_letters"] == []

    redrive = {"action": "retry", "filter": {"status": "failed", "reason": ["no_text"], "agent": "reader"}}
    dry = await console.post("/tasks/bulk", json={**redrive, "dry_run": True})
    assert (dry["matched"], dry["changed"]) == (3, 0)
    done = await console.post("/tasks/bulk", json=redrive)
    assert (done["matched"], done["changed"]) == (3, 3)
    # Whoever asks again while the copies are on their way, or after their end, starts nothing a second time.
    assert (await console.post("/tasks/bulk", json=redrive))["matched"] == 0
    await console.database.owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'completed', finished_at = now(), verb = 'complete', version = version + 1 "
        "WHERE source_task_id IS NOT NULL"
    )
    assert (await console.post("/tasks/bulk", json=redrive))["matched"] == 0
    left = (await console.get("/dead-letters"))["dead_letters"]
    assert [(each["agent"], each["reason"]) for each in left] == [
        ("reader", "model_unavailable"), ("writer", "no_text"),
    ]  # fmt: skip
    audit = await console.get("/audit")
    assert [entry["action"] for entry in audit["entries"][:3]] == ["retry"] * 3
    assert "retry" not in {entry["action"] for entry in audit["entries"][3:]}
