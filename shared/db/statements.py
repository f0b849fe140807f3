"""Named SQL: each service keeps its statements in `queries.sql`, and calls them by name.

A block starts with `-- name: verb_noun`; the comment lines after it may carry tags that tests read
(`owner`, `transition`, `fence`, `locks`, `returns`). Parameters are Postgres' own `$1`, and no text is
ever built from values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

_NAME = re.compile(r"^-- name: (?P<name>[a-z_0-9]+)\s*$")
_TAG = re.compile(r"^-- (?P<tag>owner|transition|fence|locks|returns): (?P<value>.+?)\s*$")


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement: its text with the header, and the header's tags."""

    name: str
    sql: str
    tags: dict[str, str]


def parse(text: str) -> dict[str, Statement]:
    """The statements of one file by name; ValueError for a name given twice."""
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if match := _NAME.match(line):
            if match["name"] in blocks:
                raise ValueError(f"statement {match['name']} stands twice")
            current = blocks[match["name"]] = []
        if current is not None:
            current.append(line)
    return {
        name: Statement(name, "\n".join(lines).strip(), {m["tag"]: m["value"] for m in map(_TAG.match, lines) if m})
        for name, lines in blocks.items()
    }


def load(package: str, file: str = "queries.sql") -> dict[str, Statement]:
    """The statements that stand beside a package's modules."""
    return parse(files(package).joinpath(file).read_text(encoding="utf-8"))
