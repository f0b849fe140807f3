"""One attempt of an agent in a test: a task in the database, a file in the double's Volume, the real entry point."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from services.dispatcher.storage import DispatcherStorage
from shared.testing.rows import make_agent, make_tasks
from tests.conftest import TestDatabase
from tests.support.callbacks import KEY, KEY_ID, CallbackRecorder, Received
from tests.support.workspace import WorkspaceDouble

AGENT = "document-agent"
_numbers = itertools.count(1)


@dataclass(slots=True)
class AgentWorld:
    """Everything around an agent: database, workspace, callback receiver, environment."""

    database: TestDatabase
    double: WorkspaceDouble
    recorder: CallbackRecorder
    environment: pytest.MonkeyPatch

    def configure(self, **settings: object) -> None:
        """Set environment variables by their names."""
        for name, value in settings.items():
            self.environment.setenv(name, str(value))

    def begin(self) -> None:
        """The environment of an agent's process, without tracing."""
        self.configure(
            **self.double.environment(),
            LOCKKEEPER_DATABASE_URL=self.database.url("document_agent"),
            LOCKKEEPER_CALLBACK_URL=self.recorder.url,
            LOCKKEEPER_CALLBACK_KEY_ID=KEY_ID,
            LOCKKEEPER_CALLBACK_KEY=KEY,
            LOCKKEEPER_CALLBACK_DEADLINE_SECONDS=5,
            LOCKKEEPER_MODEL="rule-based-stand-in",
        )
        self.environment.delenv("MLFLOW_TRACKING_URI", raising=False)

    async def attempt(
        self, data: bytes | None = None, *, name: str = "document.pdf", options: dict[str, Any] | None = None,
        **task: Any,
    ) -> UUID:  # fmt: skip
        """A leased attempt of a new task, for a document when bytes are given."""
        owner = self.database.owner
        agent = f"{AGENT}-{next(_numbers)}"
        await make_agent(owner, agent, options=options or {})
        if data is not None:
            task["document_id"] = await self._upload(data, name)
        await make_tasks(owner, 1, agent=agent, **task)
        pool = await self.database.open("dispatcher")
        try:
            (leased,) = await DispatcherStorage(pool, "test").claim_tasks(1, 60)
        finally:
            await pool.close()
        return UUID(str(leased.attempt_id))

    async def run(self, main: Callable[[list[str]], int], attempt_id: UUID) -> Received:
        """Carry the attempt with an entry point, as a run does, and give its end."""
        assert await asyncio.to_thread(main, [f"--attempt_id={attempt_id}"]) == 0
        assert self.recorder.refused == []
        (end,) = self.recorder.ends(attempt_id)
        return end

    async def stored(self, attempt_id: UUID) -> dict[str, Any]:
        """The result row of an attempt."""
        row = await self.database.owner.fetchrow(
            "SELECT result, confidence, pages, report FROM lockkeeper.attempt_results WHERE attempt_id = $1", attempt_id
        )
        assert row is not None
        return dict(row)

    async def _upload(self, data: bytes, name: str) -> UUID:
        path = f"/Volumes/main/lockkeeper/documents/test-{next(_numbers)}.pdf"
        answer = await asyncio.to_thread(
            self.double.http.put, f"/api/2.0/fs/files{quote(path)}?overwrite=true", content=data
        )
        assert answer.is_success, answer.text
        document_id: UUID = await self.database.owner.fetchval(
            "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, uploaded_by) "
            "VALUES ($1, $2, $3, $4, 'test') RETURNING id",
            name, path, hashlib.sha256(data).hexdigest(), len(data),
        )  # fmt: skip
        return document_id
