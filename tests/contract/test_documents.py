"""What is generated from the contract equals what stands in the repository.

Run with LOCKKEEPER_TEST_WRITE=1 to write the files anew.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from shared.contract.lifecycle import mermaid
from shared.contract.ownership import SCHEMAS
from tests.conftest import TestDatabase
from tests.support.postgres import binaries
from tests.support.statements import ROOT

STATE_MACHINE = """# The life of a task

Generated from `TRANSITIONS` in `shared/contract/lifecycle.py`; arrows carry the verb and the service that owns it.
The database refuses every other move, and a terminal task never moves again.

A parent (`gather` is set) has no work of its own: it stays enqueued until its children have ended, and `gather` ends it by
its rule. Children may be added and done anew as long as it waits; its cancelling cancels them.

```mermaid
{picture}```
"""


def _equals(path: Path, text: str) -> None:
    if os.environ.get("LOCKKEEPER_TEST_WRITE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_the_state_picture_is_the_declared_one() -> None:
    _equals(ROOT / "docs" / "state-machine.md", STATE_MACHINE.format(picture=mermaid()))


def test_baseline_equals_the_migrations(database: TestDatabase) -> None:
    if database.server.version != 18:
        return  # the dump's wording follows the version; the schema is the same text
    dumped = subprocess.run(
        [binaries(18) / "pg_dump", "--schema-only", "--no-owner", "--no-privileges", *(f"--schema={schema}" for schema in SCHEMAS),
         "--exclude-table=lockkeeper.migrations", database.url()],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    lines = [
        line
        for line in dumped.splitlines()
        if not line.startswith(("--", "SET ", "\\", "SELECT pg_catalog.set_config"))
    ]
    text = re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip() + "\n"
    header = "-- The whole schema, to read. Made from the migrations; a test holds the two equal.\n\n"
    _equals(ROOT / "shared" / "contract" / "baseline.sql", header + text)
