"""All named statements of the project, with the service that owns them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shared.contract.ownership import ROLES
from shared.db.statements import Statement, parse

ROOT = Path(__file__).resolve().parents[2]


def sql_files() -> list[Path]:
    """Every file of named statements for Postgres; `billing.sql` speaks the warehouse's dialect."""
    found = [
        *ROOT.glob("services/**/*.sql"),
        *ROOT.glob("shared/runtime/*.sql"),
        *ROOT.glob("shared/client/*.sql"),
        *ROOT.glob("shared/db/*.sql"),
    ]
    return sorted(path for path in found if path.name != "billing.sql")


def statements() -> Iterator[tuple[str, Path, Statement]]:
    """(service or room, file, statement) of every named statement."""
    for path in sql_files():
        owner = path.relative_to(ROOT).parts[1]
        for statement in parse(path.read_text(encoding="utf-8")).values():
            yield owner, path, statement


def role_service(owner: str) -> str:
    """Whose role runs the statements of a room: its own, or for shared rooms one that may."""
    return owner if owner in ROLES else "console"
