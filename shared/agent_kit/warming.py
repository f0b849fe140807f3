"""What a warm process does once, so that its first run is as fast as the next."""

from __future__ import annotations

import importlib

_SLOW = ("asyncpg", "databricks.sdk", "httpx", "mlflow", "mlflow.tracing.client", "openai", "openai.resources.chat")


def warm_up() -> None:
    """Import what takes seconds: the workspace's, the model's and the tracing client. Needs no settings."""
    for name in _SLOW:
        importlib.import_module(name)
