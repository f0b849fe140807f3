"""A callback receiver in the test's own process, and attempts brought to where a test needs them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import httpx

from services.callback_receiver.loops import DatabaseClock, RecoveredLoop, Settler
from services.callback_receiver.routes import Callbacks, create_app
from services.callback_receiver.settings import CallbackReceiverSettings
from services.callback_receiver.storage import CallbackStorage
from services.dispatcher.storage import DispatcherStorage
from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from shared.contract.channels import Channel
from shared.db.notes import Notes
from shared.db.pool import Database
from shared.identity.jwks import SignedTokens
from shared.testing.rows import make_agent, make_tasks
from tests.conftest import TestDatabase

KEYS = {"first": "s" * 32, "second": "t" * 32}
_runs = itertools.count(1)
USAGE = [{"model": "m", "input_tokens": 100, "output_tokens": 20, "cache_read_tokens": 1_000, "calls": 1}]


def settings(**own: Any) -> CallbackReceiverSettings:
    return CallbackReceiverSettings(keys=KEYS, **own)


def signed(body: bytes, *, key_id: str = "first", at: float | None = None) -> dict[str, str]:
    timestamp = str(int(time.time() if at is None else at))
    return {
        KEY_ID_HEADER: key_id,
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: sign(KEYS[key_id].encode(), timestamp, body),
    }


class HeardNotes(Notes):
    """The real outgoing notes, which also remember what was handed to them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.heard: list[tuple[Channel, set[str]]] = []

    def send(self, channel: Channel, ids: Any = ()) -> None:
        ids = list(ids)
        self.heard.append((channel, {str(each) for each in ids}))
        super().send(channel, ids)

    def of(self, channel: Channel) -> set[str]:
        return {each for heard, ids in self.heard if heard is channel for each in ids}


@dataclass
class Receiver:
    pool: Database
    storage: CallbackStorage
    settler: Settler
    notes: HeardNotes
    recovered: RecoveredLoop
    clock: DatabaseClock
    callbacks: Callbacks
    client: httpx.AsyncClient

    async def post(self, attempt: UUID | str, kind: str, body: Any, **headers: str) -> httpx.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = f"/callbacks/v1/attempts/{attempt}/{kind}"
        return await self.client.post(path, content=raw, headers=signed(raw) | headers)

    async def result(self, attempt: UUID, **body: Any) -> httpx.Response:
        return await self.post(attempt, "result", {"result": {"n": 1}, "usage": USAGE, **body})

    async def failure(self, attempt: UUID, *, retryable: bool, **body: Any) -> httpx.Response:
        said = {"reason": "model_failed", "message": "the model did not answer", "retryable": retryable, **body}
        return await self.post(attempt, "failure", said)


@asynccontextmanager
async def receiver(database: TestDatabase, **own: Any) -> AsyncIterator[Receiver]:
    """The receiver with everything but its sockets."""
    chosen = settings(**own)
    pool = await database.open("callback_receiver")
    storage, notes = CallbackStorage(pool), HeardNotes(pool)
    settler = Settler(storage, notes, chosen)
    settler.open()
    clock = DatabaseClock(storage, chosen)
    await clock.run_once()
    tokens = None
    if chosen.token_jwks_url:
        tokens = SignedTokens(chosen.token_jwks_url, issuer=chosen.token_issuer, audience=chosen.token_audience)
    callbacks = Callbacks(settler.settle, clock.now, chosen, tokens)
    transport = httpx.ASGITransport(create_app(callbacks), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:
        yield Receiver(pool, storage, settler, notes, RecoveredLoop(storage, notes, chosen), clock, callbacks, client)
    await settler.close()
    await pool.close()


@dataclass
class Stage:
    """One agent with one task, moved through its life by the code of the services that own the moves."""

    owner: asyncpg.Connection
    dispatcher: DispatcherStorage
    task_id: UUID

    async def claim(self, *, submitted: bool = True) -> UUID:
        """Lease the task's next attempt and, unless told otherwise, record a run of its own."""
        await self.owner.execute(
            "UPDATE lockkeeper.tasks SET available_at = lockkeeper.clock(), deferred = false "
            "WHERE id = $1 AND status = 'enqueued'",
            self.task_id,
        )
        (leased,) = await self.dispatcher.claim_tasks(1, 60)
        if submitted:
            await self.dispatcher.record_runs([(leased.attempt_id, next(_runs))])
        return leased.attempt_id

    async def lose(self) -> None:
        """Put the task back as the sweeper does when a run ended without a word."""
        async with self.owner.transaction():
            lost = await self.owner.fetchval(
                "UPDATE lockkeeper.tasks SET status = 'enqueued', verb = 'requeue', reason = 'run_lost', locked_by = NULL, "
                "lease_expires_at = NULL, reserved_tpm = 0, version = version + 1 WHERE id = $1 RETURNING attempt_id",
                self.task_id,
            )
            await self.owner.execute(
                "UPDATE lockkeeper.task_attempts SET status = 'lost', finished_at = lockkeeper.clock(), "
                """error = '{"reason": "run_lost"}' WHERE id = $1""",
                lost,
            )

    async def cancel(self) -> None:
        """End the task as the console does."""
        async with self.owner.transaction():
            await self.owner.execute(
                "UPDATE lockkeeper.tasks SET status = 'cancelled', verb = 'cancel', finished_at = lockkeeper.clock(), "
                "locked_by = NULL, lease_expires_at = NULL, reserved_tpm = 0, version = version + 1 WHERE id = $1",
                self.task_id,
            )
            await self.owner.execute(
                "UPDATE lockkeeper.task_attempts SET status = 'cancelled', finished_at = lockkeeper.clock(), "
                "cancel_requested_at = lockkeeper.clock() "
                "WHERE task_id = $1 AND status IN ('leased', 'submitted', 'running', 'released')",
                self.task_id,
            )

    async def store_result(self, attempt: UUID, result: Any) -> None:
        """What the agent leaves before it calls back."""
        await self.owner.execute(
            "INSERT INTO lockkeeper.attempt_results (attempt_id, result, confidence, pages, report) "
            "VALUES ($1, $2, 0.5, 3, $3)",
            attempt,
            result,
            {"usage": USAGE, "trace_id": "tr-1", "trace_state": "unverified", "result_stored": False},
        )

    async def task(self) -> asyncpg.Record:
        row = await self.owner.fetchrow("SELECT * FROM lockkeeper.tasks WHERE id = $1", self.task_id)
        assert row is not None
        return row

    async def attempt(self, attempt: UUID) -> asyncpg.Record:
        row = await self.owner.fetchrow("SELECT * FROM lockkeeper.task_attempts WHERE id = $1", attempt)
        assert row is not None
        return row

    async def verbs(self) -> list[str]:
        rows = await self.owner.fetch(
            "SELECT verb FROM lockkeeper.task_history WHERE task_id = $1 ORDER BY version", self.task_id
        )
        return [row["verb"] for row in rows]


@asynccontextmanager
async def stage(database: TestDatabase, **task: Any) -> AsyncIterator[Stage]:
    """A waiting task of an agent with a token budget."""
    if await database.owner.fetchval("SELECT count(*) FROM lockkeeper.agents") == 0:
        await make_agent(database.owner, max_tpm=1_000_000, lease_seconds=300)
    (task_id,) = await make_tasks(database.owner, 1, estimated_tokens=500, **task)
    pool = await database.open("dispatcher")
    yield Stage(database.owner, DispatcherStorage(pool, "d"), task_id)
    await pool.close()
