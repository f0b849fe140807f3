from __future__ import annotations

from tests.conftest import TestDatabase

_TABLES = """
SELECT c.oid::regclass::text AS name, c.relreplident::text AS identity
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname IN ('agent_ops', 'agent_policy') AND c.relkind IN ('r', 'p')
 ORDER BY 1
"""


async def test_t_12_every_table_of_the_record_carries_its_whole_old_row(database: TestDatabase) -> None:
    tables = {row["name"]: row["identity"] for row in await database.owner.fetch(_TABLES)}
    assert len(tables) >= 7
    assert {name: identity for name, identity in tables.items() if identity != "f"} == {}


async def test_t_12_the_catalogue_test_sees_a_table_that_forgot(database: TestDatabase) -> None:
    await database.owner.execute("CREATE TABLE agent_ops.forgetful (id int PRIMARY KEY) PARTITION BY LIST (id)")
    await database.owner.execute(
        "CREATE TABLE agent_ops.forgetful_1 PARTITION OF agent_ops.forgetful FOR VALUES IN (1)"
    )
    forgot = {row["name"] for row in await database.owner.fetch(_TABLES) if row["identity"] != "f"}
    assert forgot == {"agent_ops.forgetful", "agent_ops.forgetful_1"}
