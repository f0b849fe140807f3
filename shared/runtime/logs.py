"""Structured logs: one JSON object a line on standard output, `action` first, ids as fields."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog
from typing_extensions import override


def configure_logs(service: str, replica: str, level: str) -> None:
    """Send this process's logs, and warnings of the libraries, to standard output as JSON lines."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _with_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("action"),
            structlog.processors.JSONRenderer(serializer=lambda event, **_: orjson.dumps(event, default=str).decode()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, replica=replica)
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)


def _with_trace(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A line about a task names its trace, so that logs and traces join without a table between them."""
    task = event.get("task_id")
    if isinstance(task, str):
        event["trace_id"] = task.replace("-", "")
    return event


class _Bridge(logging.Handler):
    """What libraries log through the standard module, in the same form."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        structlog.get_logger().log(record.levelno, record.getMessage(), **fields)
