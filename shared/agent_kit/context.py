"""What a handler works with, and what it returns."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.agent_kit.heartbeats import Progress
from shared.agent_kit.model import ModelClient
from shared.agent_kit.storage import AgentInput
from shared.agent_kit.traces import Trace
from shared.agent_kit.usage import UsageLedger
from shared.agent_kit.workspace import download
from shared.contract.errors import RejectedError

DOCUMENT_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class AgentResult:
    """A success. `result` is a JSON object; `confidence` is 0..1 or None when it says nothing."""

    result: dict[str, Any]
    confidence: float | None = None
    pages: int | None = None
    damage: list[str] = field(default_factory=list)
    cleaned_characters: int = 0


@dataclass(frozen=True, slots=True)
class AgentContext:
    """One attempt as its handler sees it."""

    task: AgentInput
    model: ModelClient
    trace: Trace
    usage: UsageLedger
    progress: Progress

    @property
    def input(self) -> dict[str, Any]:
        """The task's input, as it was enqueued."""
        return self.task.input

    @property
    def options(self) -> dict[str, Any]:
        """The agent's options, as an operator set them."""
        return self.task.options

    @asynccontextmanager
    async def open_document(self, limit_bytes: int = DOCUMENT_LIMIT_BYTES) -> AsyncIterator[Path]:
        """The task's document as a file on disk, removed afterwards. It was streamed: memory does not grow with it."""
        if not self.task.volume_path:
            raise RejectedError("the task names no document", reason="document_missing")
        with tempfile.TemporaryDirectory(prefix="lockkeeper-") as folder:
            path = Path(folder) / "document.pdf"
            await asyncio.to_thread(
                download, self.task.volume_path, path, expected_bytes=self.task.bytes, limit_bytes=limit_bytes
            )
            yield path

    def heartbeat(self, pages_done: int | None = None, pages_total: int | None = None, step: str | None = None) -> None:
        """Say how far it is. Costs nothing: the kit sends the latest word, about once a second."""
        self.progress.move(pages_done, pages_total, step)
