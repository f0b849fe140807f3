from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from services.console.messages.answers import Summary, Task
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.integration.notifier.conftest import Notifier, StartNotifier, Tasks


async def test_a_change_reaches_the_browser_within_a_second(start_notifier: StartNotifier, tasks: Tasks) -> None:
    first = await tasks.add(customer="A")
    notifier = await start_notifier()
    async with notifier.stream() as stream:
        snapshot = await stream.wait("snapshot")
        assert [task["id"] for task in snapshot.data["tasks"]] == [first]
        Task.model_validate(snapshot.data["tasks"][0])
        Summary.model_validate(snapshot.data["summary"])
        assert snapshot.data["agents"][0]["name"] == "reader"
        started = time.monotonic()
        second = await tasks.add(customer="B")
        event = await stream.wait("task", lambda task: task["id"] == second)
        assert time.monotonic() - started < 1
        Task.model_validate(event.data)
        assert event.data["reason"] == "next"
        await stream.wait("summary", lambda summary: summary["counts"]["enqueued"] == 2, seconds=3)
        await stream.wait("state", lambda state: state["listener"] == "live")


async def test_s01_headers_forbid_proxies_to_hold_events_back(start_notifier: StartNotifier, tasks: Tasks) -> None:
    notifier = await start_notifier(heartbeat_seconds=0.2)
    async with notifier.stream() as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        assert "no-transform" in stream.headers["cache-control"]
        assert "content-encoding" not in stream.headers
        await until(lambda: stream.comments >= 2)
        assert stream.retry is not None and 1000 <= stream.retry <= 4000


async def test_whoever_asks_for_the_head_only_gets_no_stream(start_notifier: StartNotifier, tasks: Tasks) -> None:
    notifier = await start_notifier()
    async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
        answer = await http.head(f"{notifier.url}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert (await http.head(f"{notifier.url}/events")).status_code == 200
    assert not len(notifier.browsers)


async def test_a_filter_shows_its_tasks_and_says_which_left_it(start_notifier: StartNotifier, tasks: Tasks) -> None:
    notifier = await start_notifier()
    async with notifier.stream("?customer=B&status=enqueued") as stream:
        await stream.wait("snapshot")
        other = await tasks.add(customer="A")
        mine = await tasks.add(customer="B")
        await stream.wait("task", lambda task: task["id"] == mine)
        await tasks.cancel(mine)
        await stream.wait("gone", lambda gone: gone["id"] == mine)
        assert other not in {event.data["id"] for event in stream.events if event.name in {"task", "gone"}}
    async with notifier.stream("?status=nonsense") as refused:
        assert refused.status == 422


async def test_a_returning_browser_gets_what_it_missed_and_nothing_twice(
    start_notifier: StartNotifier, tasks: Tasks
) -> None:
    notifier = await start_notifier(gather_seconds=0.05)
    async with notifier.stream() as stream:
        await stream.wait("snapshot")
        seen = await tasks.add()
        last = (await stream.wait("task", lambda task: task["id"] == seen)).id
    async with notifier.stream() as witness:
        missed = [await tasks.add() for _ in range(3)]
        await tasks.touch(missed[0], 99)
        await witness.wait("task", lambda task: task["id"] == missed[0] and task["priority"] == 99)
        async with notifier.stream(last_event_id=last) as back:
            await back.wait("task", lambda task: task["id"] == missed[0] and task["priority"] == 99)
            await back.wait("task", lambda task: task["id"] == missed[2])
            assert not back.named("snapshot")
            ids = [event.data["id"] for event in back.named("task")]
            assert sorted(ids) == sorted(missed)
        async with notifier.stream("?last_event_id=" + str(last)) as by_query:
            await by_query.wait("task", lambda task: task["id"] == missed[2])
            assert not by_query.named("snapshot")


async def test_an_id_that_is_not_known_gets_a_snapshot(start_notifier: StartNotifier, tasks: Tasks) -> None:
    notifier = await start_notifier(replay_events=1)
    async with notifier.stream() as stream:
        epoch = (await stream.wait("snapshot")).id.rpartition("-")[0]
        for _ in range(3):
            new = await tasks.add()
            await stream.wait("task", lambda task, new=new: task["id"] == new)
        for last in ("other-5", "nonsense", "", f"{epoch}-999999", f"{epoch}--1", f"{epoch}-0"):
            async with notifier.stream(last_event_id=last) as back:
                snapshot = await back.wait("snapshot")
                assert len(snapshot.data["tasks"]) == 3, last


async def test_another_replica_gives_a_snapshot(start_notifier: StartNotifier, tasks: Tasks) -> None:
    one, two = await start_notifier(), await start_notifier()
    async with one.stream() as stream:
        await stream.wait("snapshot")
        new = await tasks.add()
        last = (await stream.wait("task", lambda task: task["id"] == new)).id
    async with two.stream(last_event_id=last) as back:
        assert [task["id"] for task in (await back.wait("snapshot")).data["tasks"]] == [new]


async def test_a_broken_note_means_look_at_everything(start_notifier: StartNotifier, tasks: Tasks) -> None:
    """N-09."""
    notifier = await start_notifier()
    async with notifier.stream() as stream:
        await stream.wait("snapshot")
        for payload in ("", "x", '["', '["not-an-id"]', "[1]", "{}", "x" * 7_999):
            silent = await tasks.add(note=False)
            await tasks.note(payload)
            await stream.wait("snapshot", lambda data, new=silent: new in {task["id"] for task in data["tasks"]})
        after = await tasks.add()
        await stream.wait("task", lambda task: task["id"] == after)


async def test_n03_what_changed_while_the_listener_was_away_is_shown(
    start_notifier: StartNotifier, tasks: Tasks, database: TestDatabase
) -> None:
    """N-03, N-01: listen first, then a snapshot, then the stream."""
    notifier = await start_notifier()
    async with notifier.stream() as stream:
        await stream.wait("snapshot")
        await database.owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockkeeper-notifier-listen'"
        )
        silent = [await tasks.add(note=False) for _ in range(20)]
        await stream.wait("snapshot", lambda data: set(silent) <= {task["id"] for task in data["tasks"]}, seconds=20)
        await stream.wait("state", lambda state: state["listener"] == "live")


async def test_polling_keeps_browsers_fresh_without_notes(
    start_notifier: StartNotifier, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = await start_notifier(poll_seconds=0.2)
    monkeypatch.setattr(type(notifier.process), "is_live", property(lambda _: False))
    async with notifier.stream() as stream:
        await stream.wait("snapshot")
        await stream.wait("state", lambda state: state["listener"] == "polling")
        silent = await tasks.add(note=False)
        await stream.wait("task", lambda task: task["id"] == silent)
        await tasks.touch(silent, 7, note=False)
        await stream.wait("task", lambda task: task["priority"] == 7)
        await stream.wait("summary", lambda summary: summary["counts"]["enqueued"] == 1)
        polls = len(stream.named("task"))
        await stream.wait("state")
        assert len(stream.named("task")) == polls


async def test_c04_a_late_commit_is_found_by_polling(
    start_notifier: StartNotifier, tasks: Tasks, database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-04: an event that is dated before others and commits after them."""
    notifier = await start_notifier(poll_seconds=0.1)
    monkeypatch.setattr(type(notifier.process), "is_live", property(lambda _: False))
    other = await database.open("console")
    async with notifier.stream() as stream:
        await stream.wait("snapshot")
        async with other.transaction() as connection:
            late = await connection.fetchval("INSERT INTO lockkeeper.tasks (agent) VALUES ('reader') RETURNING id")
            early = await tasks.add(note=False)
            await stream.wait("task", lambda task: task["id"] == early)
        await stream.wait("task", lambda task: task["id"] == str(late))
    await other.close()


async def test_a_slow_browser_gets_the_latest_state_only(start_notifier: StartNotifier, tasks: Tasks) -> None:
    notifier = await start_notifier(gather_seconds=0.01, pending_events=50, send_seconds=60)
    task = await tasks.add()
    async with notifier.stream() as quick, notifier.stuck() as slow:
        await quick.wait("snapshot")
        for priority in range(20):
            await tasks.touch(task, priority)
            await quick.wait("task", lambda data, priority=priority: data["priority"] == priority)
        assert len(slow.browser.backlog) == 1
        taken = await slow.take()
        assert taken.count(b"event: task") == 1
        assert b'"priority":19' in taken

        await slow.fill()
        ids = [await tasks.add(note=False) for _ in range(60)]
        await tasks.note(ids)
        await quick.wait("task", lambda data: data["id"] == max(ids))
        # Further behind than it may be: what waits for it is a snapshot, and nothing that is in it already.
        await until(lambda: not slow.browser.needs_snapshot)
        taken = await slow.take()
        assert taken.count(b"event: snapshot") == 1
        assert taken.count(b"event: task") == 0

        last = await tasks.add()
        await until(lambda: quick.named("task")[-1].data["id"] == last)
        assert (await slow.take()).count(b"event: task") == 1


async def test_a_snapshot_of_before_is_not_enough_for_who_missed_more_than_it_may(
    start_notifier: StartNotifier, tasks: Tasks
) -> None:
    """What others were given a moment ago is shared, but not when what came since is too much to be added to it."""
    notifier = await start_notifier(gather_seconds=0.01, pending_events=10, send_seconds=60, summary_seconds=3)
    async with notifier.stream() as quick, notifier.stuck() as slow:
        await quick.wait("snapshot")
        ids = [await tasks.add(note=False) for _ in range(20)]
        await tasks.note(ids)
        await quick.wait("task", lambda data: data["id"] == max(ids))
        await until(lambda: not slow.browser.needs_snapshot, seconds=20)
        taken = await slow.take()
        assert [each for each in ids if each.encode() not in taken] == []


async def test_costs_travel_as_their_own_event(
    start_notifier: StartNotifier, tasks: Tasks, database: TestDatabase
) -> None:
    notifier = await start_notifier()
    task = await tasks.add()
    async with notifier.stream() as stream:
        await stream.wait("snapshot")
        await tasks.note([task])
        await stream.wait("task")
        await database.owner.execute(
            "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, input_tokens, llm_cost, "
            "cost_status) SELECT gen_random_uuid(), id, agent, 1, 'running', now(), 1200, 0.0042, 'partial' "
            "FROM lockkeeper.tasks"
        )
        await tasks.note([task], "lockkeeper_cost_changed")
        cost = (await stream.wait("cost")).data
        assert (cost["id"], cost["llm_cost"], cost["compute_cost"], cost["input_tokens"]) == (
            task, "0.0042", "pending", 1200,
        )  # fmt: skip


async def test_s07_too_many_streams_are_sent_to_polling(start_notifier: StartNotifier, tasks: Tasks) -> None:
    notifier = await start_notifier(max_clients=2)
    async with notifier.stream() as one, notifier.stream() as two:
        await one.wait("snapshot")
        await two.wait("snapshot")
        async with notifier.stream() as third:
            assert third.status == 503
            assert 3 <= int(third.headers["retry-after"]) <= 10
    await until(lambda: not len(notifier.browsers))
    async with notifier.stream() as again:
        await again.wait("snapshot")


def counted(notifier: Notifier) -> list[str]:
    """The names of what it reads from now on."""
    reads: list[str] = []
    storage = notifier.body._parts.loops[0]._storage
    timed = storage._timed

    async def count(name: str, *args: Any) -> Any:
        reads.append(name)
        return await timed(name, *args)

    storage._timed = count
    return reads


async def test_a_page_that_shows_no_totals_costs_none(start_notifier: StartNotifier, tasks: Tasks) -> None:
    """The totals of one task, looked for by its id, would read thousands of tasks again and again."""
    notifier = await start_notifier(summary_seconds=0.1)
    task = await tasks.add()
    reads = counted(notifier)
    async with notifier.stream(f"?text={task}&only=tasks") as page:
        assert set((await page.wait("snapshot")).data) == {"tasks", "is_whole"}
        async with notifier.stream(f"?text={task}") as table:
            await tasks.touch(task, 7)
            await page.wait("task", lambda data: data["priority"] == 7)
            await table.wait("summary")
        assert not page.named("summary")
        assert not page.named("agents")
        reads.clear()
        await tasks.touch(task, 8)
        await page.wait("task", lambda data: data["priority"] == 8)
        await page.wait("state")
        assert set(reads) <= {"read_tasks", "list_recently_changed"}


async def test_s07_two_hundred_who_come_at_once_cost_one_snapshot(start_notifier: StartNotifier, tasks: Tasks) -> None:
    """No stampede on the database after a restart."""
    notifier = await start_notifier()
    await tasks.add()
    reads = counted(notifier)
    async with httpx.AsyncClient(
        timeout=httpx.Timeout(20), limits=httpx.Limits(max_connections=300), trust_env=False
    ) as http:

        async def come(query: str) -> None:
            async with http.stream("GET", f"{notifier.url}/events{query}") as answer:
                async for line in answer.aiter_lines():
                    if line == "event: snapshot":
                        return

        await asyncio.gather(*(come(f"?customer={n % 4}") for n in range(200)))
    assert reads.count("list_tasks") <= 10
    assert reads.count("summarise_tasks") <= 10
    assert reads.count("list_queue_state") <= 4
    await until(lambda: not len(notifier.browsers), seconds=20)


async def test_s05_streams_end_at_once_when_the_process_ends(start_notifier: StartNotifier, tasks: Tasks) -> None:
    notifier = await start_notifier()
    async with notifier.stream() as one, notifier.stream() as two:
        await one.wait("snapshot")
        await two.wait("snapshot")
        started = time.monotonic()
        await notifier.end()
        assert time.monotonic() - started < 5
        for stream in (one, two):
            await stream.wait("close")
            await until(lambda stream=stream: stream.is_over)


async def test_a_stream_opened_while_the_database_is_away_is_no_error(
    start_notifier: StartNotifier, tasks: Tasks, database: TestDatabase
) -> None:
    notifier = await start_notifier()
    task = await tasks.add()
    good = notifier.process.database._pool
    notifier.process.database._pool = None
    async with notifier.stream() as stream:
        assert stream.status == 200
        await stream.wait("state")
        notifier.process.database._pool = good
        snapshot = await stream.wait("snapshot", seconds=30)
        assert [each["id"] for each in snapshot.data["tasks"]] == [task]
