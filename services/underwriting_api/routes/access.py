"""Which right a call of the underwriting API needs."""

from __future__ import annotations

from shared.identity.people import Right
from shared.runtime.http.edge import SAFE


def needs(method: str, path: str) -> Right | None:
    """Decisions are a reviewer's; asking for a loan or for its end is an operator's."""
    if path.startswith("/underwriting/static/"):
        return None
    if method in SAFE:
        return Right.READ
    return Right.REVIEW if "/reviews/" in path else Right.OPERATE
