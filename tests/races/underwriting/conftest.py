from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.underwriting_fixtures import api, desk, temporal

__all__ = ["api", "desk", "temporal"]


@pytest.fixture
def workers() -> Iterator[list[Any]]:
    """Worker processes of this test; what still lives at its end is killed."""
    started: list[Any] = []
    yield started
    for worker in started:
        if worker.is_alive():
            worker.kill()
        worker.join(10)
