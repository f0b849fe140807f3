"""The receiver as a process: started as in production, drained, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
import psutil
import pytest

from deploy.local.folder import free_port
from shared.db.invariants import violations
from shared.testing.wait import until
from tests.conftest import TestDatabase
from tests.support.receiver import KEYS, signed, stage
from tests.support.statements import ROOT

pytestmark = pytest.mark.timeout(180)

BODY = b'{"result": {"n": 1}, "usage": []}'


class Process:
    """`python -m services.callback_receiver` on free ports."""

    def __init__(self, database_url: str) -> None:
        self.port, self.ops_port = free_port(), free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")} | {
            "LOCKKEEPER_DATABASE_URL": database_url,
            "LOCKKEEPER_PORT": str(self.port),
            "LOCKKEEPER_OPS_PORT": str(self.ops_port),
            "LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps(KEYS),
        }
        self.child = subprocess.Popen(
            [sys.executable, "-m", "services.callback_receiver"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def is_ready(self) -> bool:
        try:
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{self.ops_port}/readyz")
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    async def post(self, attempt: UUID) -> Any:
        async with httpx.AsyncClient(timeout=30) as client:
            url = f"http://127.0.0.1:{self.port}/callbacks/v1/attempts/{attempt}/result"
            return await client.post(url, content=BODY, headers=signed(BODY))

    def stop(self) -> str:
        """End it whatever it does; its log."""
        if self.child.poll() is None:
            self.child.kill()
        return self.child.communicate()[0]


@pytest.fixture
def processes(database: TestDatabase) -> Iterator[list[Process]]:
    started = [Process(database.url("callback_receiver")) for _ in range(2)]
    yield started
    for each in started:
        each.stop()


async def test_a_request_under_way_is_answered_although_the_process_was_told_to_stop(
    database: TestDatabase, processes: list[Process]
) -> None:
    one = processes[0]
    await until(one.is_ready, seconds=30)
    async with stage(database) as on:
        attempt = await on.claim()
        async with database.owner.transaction():
            await database.owner.execute("SELECT FROM lockkeeper.tasks FOR UPDATE")
            answer = asyncio.create_task(one.post(attempt))
            await until(lambda: any(c.status == "ESTABLISHED" for c in psutil.Process(one.child.pid).net_connections()
                                    if c.laddr.port == one.port))  # fmt: skip
            one.child.send_signal(signal.SIGTERM)
            await until(lambda: _logged(one, "draining"))
        assert (await answer).json()["outcome"] == "completed"
        assert await asyncio.to_thread(one.child.wait, 20) == 0
    assert await violations(database.owner) == []


def _logged(process: Process, action: str) -> bool:
    assert process.child.stdout is not None
    line = process.child.stdout.readline()
    assert not any(secret in line for secret in KEYS.values())
    return f'"action":"{action}"' in line


async def test_kill_9_at_any_moment_loses_and_doubles_nothing(database: TestDatabase, processes: list[Process]) -> None:
    one, two = processes
    await until(one.is_ready, seconds=30)
    await until(two.is_ready, seconds=30)
    contexts = [stage(database) for _ in range(12)]
    stages = [await context.__aenter__() for context in contexts]
    attempts = [await on.claim() for on in stages]
    first = [asyncio.create_task(one.post(attempt)) for attempt in attempts]
    done, _ = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    one.child.kill()
    outcomes = await asyncio.gather(*first, return_exceptions=True)
    assert len(done) >= 1
    # Whoever got no answer offers the callback again, and gets the one that the others got.
    answers = [await two.post(attempt) for attempt in attempts]
    for before, after in zip(outcomes, answers, strict=True):
        assert after.status_code == 200
        if isinstance(before, httpx.Response):
            assert before.content == after.content
    for context, on in zip(contexts, stages, strict=True):
        assert (await on.verbs()).count("complete") == 1
        await context.__aexit__(None, None, None)
    assert await violations(database.owner) == []
