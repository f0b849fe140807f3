from __future__ import annotations

import asyncpg
import pytest

from shared.contract.ownership import ROLES, SCHEMAS, qualified, role_of
from tests.conftest import TestDatabase

_RIGHTS = """
SELECT c.relnamespace::regnamespace || '.' || c.relname AS table, p.right,
       has_table_privilege($1, c.oid, p.right) AS whole,
       coalesce((SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND p.right IN ('INSERT', 'UPDATE')
           AND has_column_privilege($1, c.oid, a.attnum, p.right)), '{}') AS columns
  FROM pg_class c, unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS p ("right")
 WHERE c.relnamespace::regnamespace::text = ANY ($2) AND c.relkind IN ('r', 'p', 'v')
"""


@pytest.mark.parametrize("service", list(ROLES))
async def test_a_role_may_write_exactly_what_the_contract_gives_it(migrated: TestDatabase, service: str) -> None:
    allowed: dict[tuple[str, str], set[str]] = {}
    for grant in ROLES[service].writes:
        if grant.insert:
            allowed.setdefault((qualified(grant.table), "INSERT"), set()).add("*")
        if grant.delete:
            allowed.setdefault((qualified(grant.table), "DELETE"), set()).add("*")
        if grant.update:
            allowed.setdefault((qualified(grant.table), "UPDATE"), set()).update(grant.update)
    for row in await migrated.owner.fetch(_RIGHTS, role_of(service), list(SCHEMAS)):
        columns = allowed.get((row["table"], row["right"]), set())
        where = f"{service} {row['right']} {row['table']}"
        if "*" in columns:
            assert row["whole"], where
        else:
            assert not row["whole"], where
            assert set(row["columns"]) == columns, where


@pytest.mark.parametrize(
    ("service", "foreign"),
    [
        ("dispatcher", "UPDATE lockkeeper.tasks SET result = '{}'"),
        ("dispatcher", "UPDATE lockkeeper.agents SET max_concurrent_tasks = 1000"),
        ("sweeper", "UPDATE lockkeeper.task_attempts SET llm_cost = 0"),
        ("sweeper", "INSERT INTO lockkeeper.tasks (agent) VALUES ('a')"),
        ("callback_receiver", "UPDATE lockkeeper.tasks SET priority = 100"),
        ("callback_receiver", "UPDATE lockkeeper.task_attempts SET run_id = 1"),
        ("cost_attributor", "UPDATE lockkeeper.tasks SET status = 'completed'"),
        ("cost_attributor", "DELETE FROM lockkeeper.cost_entries"),
        ("notifier", "UPDATE lockkeeper.tasks SET version = version + 1"),
        ("console", "UPDATE lockkeeper.tasks SET result = '{}'"),
        ("console", "UPDATE lockkeeper.operator_audit SET actor = 'nobody'"),
        ("console", "DELETE FROM lockkeeper.tasks"),
        ("underwriting_worker", "UPDATE agent_policy.underwriting_policy_limits SET minimum_score = 0"),
        ("underwriting_worker", "UPDATE agent_ops.agent_runs SET amount = 1"),
        ("underwriting_worker", "UPDATE lockkeeper.cost_entries SET amount = 0"),
        ("underwriting_worker", "DELETE FROM agent_ops.agent_review_decisions"),
        ("underwriting_api", "UPDATE agent_ops.agent_runs SET recommendation = NULL"),
        ("underwriting_api", "UPDATE agent_ops.agent_review_decisions SET reviewer = 'nobody'"),
        ("underwriting_api", "SELECT * FROM lockkeeper.tasks"),
        ("console", "UPDATE agent_ops.agent_runs SET state = 'completed'"),
        ("document_agent", "UPDATE lockkeeper.tasks SET status = 'completed'"),
        ("document_agent", "SELECT * FROM lockkeeper.tasks"),
        ("document_agent", "UPDATE lockkeeper.attempt_results SET confidence = 1"),
    ],
)
async def test_a_foreign_write_is_refused_by_the_database(migrated: TestDatabase, service: str, foreign: str) -> None:
    connection = await asyncpg.connect(migrated.url(service))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(foreign)
    finally:
        await connection.close()
