"""Which right a call of the console needs."""

from __future__ import annotations

from services.console.routes.given import API
from shared.identity.people import Right
from shared.runtime.http.edge import SAFE

_TERMS = tuple(f"{API}/{name}" for name in ("agents", "customers", "prices"))
"""What limits, budgets and money depend on."""


def needs(method: str, path: str) -> Right | None:
    """Reading needs little, limits and agents an administrator; whatever changes something else, an operator."""
    if path.startswith("/static/") or path == "/favicon.ico":
        return None
    if method in SAFE:
        return Right.READ
    is_switch = path.endswith(("/pause", "/resume"))
    return Right.ADMINISTER if path.startswith(_TERMS) and not is_switch else Right.OPERATE
