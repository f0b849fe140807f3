"""What people who read by SQL may see: the views of the contract, and nothing behind them."""

from __future__ import annotations

import re

import asyncpg
import pytest

from shared.contract.ownership import READABLE, READER_ROLE, qualified
from tests.conftest import TestDatabase
from tests.support.statements import ROOT

_SQL = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)


async def test_every_view_answers_its_reader_and_nothing_else_does(migrated: TestDatabase) -> None:
    async with migrated.owner.transaction():
        await migrated.owner.execute(f"SET LOCAL ROLE {READER_ROLE}")
        for view in READABLE:
            await migrated.owner.fetch(f"SELECT * FROM {qualified(view)} LIMIT 1")
        for table in ("tasks", "task_attempts", "cost_entries", "model_prices", "documents"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with migrated.owner.transaction():
                    await migrated.owner.fetch(f"SELECT * FROM lockkeeper.{table} LIMIT 1")


async def test_the_questions_of_the_cost_page_run_as_they_stand_there(migrated: TestDatabase) -> None:
    questions = _SQL.findall((ROOT / "docs" / "costs.md").read_text(encoding="utf-8"))
    statements = [each for text in questions for each in re.split(r";\s*$", text, flags=re.MULTILINE) if each.strip()]
    assert len(statements) >= 8
    async with migrated.owner.transaction():
        await migrated.owner.execute(f"SET LOCAL ROLE {READER_ROLE}")
        for statement in statements:
            await migrated.owner.fetch(statement)
