"""One step of an attempt, as its trace will show it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SpanRecord:
    """One step. Attributes are what MLflow is given; `error` marks it as failed; it ends when it is handed over."""

    name: str
    kind: str = "UNKNOWN"
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    inputs: Any = None
    outputs: Any = None
    error: str | None = None
