from __future__ import annotations

import asyncpg
import pytest

from shared.contract.lifecycle import TRANSITIONS
from shared.contract.ownership import SCHEMAS
from shared.db.statements import Statement
from tests.conftest import TestDatabase
from tests.support.statements import ROOT, role_service, statements

ALL = [pytest.param(owner, statement, id=f"{owner}-{statement.name}") for owner, _, statement in statements()]


@pytest.mark.parametrize(("owner", "statement"), ALL)
async def test_every_statement_plans_under_its_own_role(
    migrated: TestDatabase, owner: str, statement: Statement
) -> None:
    """EXPLAIN checks names, types and rights, so a missing grant fails here and not in production."""
    connection = await asyncpg.connect(migrated.url(role_service(owner)))
    try:
        await connection.execute(f"EXPLAIN (GENERIC_PLAN) {statement.sql}")
    finally:
        await connection.close()


@pytest.mark.parametrize(("owner", "statement"), ALL)
def test_transitions_stand_with_their_owner(owner: str, statement: Statement) -> None:
    assert statement.tags.get("owner", owner).split()[0] == owner
    if "transition:" not in statement.sql:
        return
    verbs = statement.sql.split("transition:")[1].splitlines()[0].split(",")
    declared = {move.verb for move in TRANSITIONS if move.owner == owner}
    assert {verb.strip() for verb in verbs} <= declared


def test_every_declared_transition_has_its_statement() -> None:
    stated = {
        (owner, verb.strip())
        for owner, _, statement in statements()
        if "transition:" in statement.sql
        for verb in statement.sql.split("transition:")[1].splitlines()[0].split(",")
    }
    assert {(move.owner, move.verb) for move in TRANSITIONS} <= stated


def test_statement_and_storage_method_share_their_name() -> None:
    """One grep for a name shows the whole path from the loop to the SQL."""
    for owner, path, statement in statements():
        code = "".join(each.read_text(encoding="utf-8") for each in path.parent.rglob("*.py"))
        assert f'"{statement.name}"' in code, f"{owner}: nothing calls {statement.name}"


def test_sql_text_stands_only_in_sql_files() -> None:
    """No statement on our tables hides in Python code of a service."""
    for path in ROOT.glob("services/**/*.py"):
        text = path.read_text(encoding="utf-8")
        for schema in SCHEMAS:
            for verb in ("INSERT INTO", "UPDATE", "DELETE FROM", "FROM"):
                assert f"{verb} {schema}." not in text, f"{path.relative_to(ROOT)} holds SQL"
