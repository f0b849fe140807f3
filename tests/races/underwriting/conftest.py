from __future__ import annotations

from tests.support.underwriting_fixtures import api, desk, temporal

__all__ = ["api", "desk", "temporal"]
