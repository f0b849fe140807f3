"""One stack for all stories of this folder: it takes half a minute to start, so they share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.local.folder import free_port
from tests.support.stack import StackProcess

START_SECONDS = 300
QUEUE = (
    "console", "notifier", "dispatcher", "sweeper", "callback_receiver", "cost_attributor", "setup", "mlflow",
)  # fmt: skip
OFTEN = {"LOCKKEEPER_AGENT_PROGRESS_SECONDS": "0.1"}
"""A document that is read in a second moves its bar nevertheless."""


@pytest.fixture(scope="package")
def queue_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcess]:
    """Everything that carries documents, ready."""
    stack = StackProcess(tmp_path_factory.mktemp("queue") / "data", free_port(), *QUEUE, **OFTEN).start(START_SECONDS)
    yield stack
    stack.destroy()
