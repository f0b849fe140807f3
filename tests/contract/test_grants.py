from __future__ import annotations

import asyncpg
import pytest

from shared.contract.ownership import CUSTOMER_READER_ROLE, ROLES, SCHEMAS, Grant, qualified, role_of
from shared.testing.rows import make_agent, make_tasks
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


@pytest.mark.parametrize("service", list(ROLES))
async def test_a_role_may_read_exactly_what_the_contract_gives_it(migrated: TestDatabase, service: str) -> None:
    may_read = await migrated.owner.fetch(
        "SELECT c.relnamespace::regnamespace || '.' || c.relname AS name FROM pg_class c"
        " WHERE c.relnamespace::regnamespace::text = ANY ($2) AND c.relkind IN ('r', 'p', 'v', 'm')"
        "   AND has_table_privilege($1, c.oid, 'SELECT')",
        role_of(service), list(SCHEMAS),
    )  # fmt: skip
    assert {row["name"] for row in may_read} == {qualified(table) for table in ROLES[service].reads}


@pytest.mark.parametrize("service", list(ROLES))
async def test_a_service_logged_in_by_hand_cannot_do_anothers_writes(migrated: TestDatabase, service: str) -> None:
    """Every write of every other service that this one was not given too, tried on its own connection."""
    own = {(grant.table, verb, column) for grant in ROLES[service].writes for verb, column in _verbs(grant)}
    foreign = {
        (grant.table, verb, column)
        for other, role in ROLES.items() if other != service
        for grant in role.writes for verb, column in _verbs(grant)
    }  # fmt: skip
    connection = await asyncpg.connect(migrated.url(service))
    try:
        for table, verb, column in sorted(foreign - own):
            if (table, "update", "*") in own and verb == "update":
                continue
            first = await migrated.owner.fetchval(
                "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0"
                " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum LIMIT 1", qualified(table),
            )  # fmt: skip
            if column == "*" and (table, "update") in {(name, kind) for name, kind, _ in own} and verb == "update":
                continue
            name = first if column == "*" else column
            statement = {
                "insert": f"INSERT INTO {qualified(table)} DEFAULT VALUES",
                "update": f"UPDATE {qualified(table)} SET {name} = NULL WHERE false",
                "delete": f"DELETE FROM {qualified(table)} WHERE false",
            }[verb]
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(f"EXPLAIN {statement}" if verb == "insert" else statement)
    finally:
        await connection.close()


def _verbs(grant: Grant) -> list[tuple[str, str]]:
    return (
        [("insert", "")] * grant.insert + [("delete", "")] * grant.delete
        + [("update", column) for column in grant.update]
    )  # fmt: skip


async def test_a_customers_reader_sees_its_own_customers_and_nothing_else(database: TestDatabase) -> None:
    await make_agent(database.owner)
    for customer in ("north", "south"):
        await make_tasks(database.owner, 2, customer=customer)
    await database.owner.execute(
        f"CREATE ROLE bi_north LOGIN PASSWORD 'test' IN ROLE {CUSTOMER_READER_ROLE};"
        "INSERT INTO lockkeeper.reader_customers VALUES ('bi_north', 'north')"
    )
    connection = await asyncpg.connect(database.server.url("bi_north", database.name))
    try:
        seen = await connection.fetch("SELECT DISTINCT customer FROM lockkeeper.customer_costs")
        assert [row["customer"] for row in seen] == ["north"]
        for table in ("tasks", "task_costs", "queue_state", "reader_customers", "documents"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(f"SELECT * FROM lockkeeper.{table}")
        await database.owner.execute("DELETE FROM lockkeeper.reader_customers")
        assert await connection.fetch("SELECT * FROM lockkeeper.customer_costs") == []
    finally:
        await connection.close()
        await database.owner.execute("DROP ROLE bi_north")


async def test_functions_that_act_for_the_owner_have_a_fixed_search_path(migrated: TestDatabase) -> None:
    loose = await migrated.owner.fetch(
        "SELECT p.oid::regprocedure::text AS name FROM pg_proc p WHERE p.pronamespace::regnamespace::text = ANY ($1)"
        "   AND p.prosecdef AND NOT coalesce(array_to_string(p.proconfig, ',') LIKE 'search_path=pg_catalog%', false)",
        list(SCHEMAS),
    )
    assert [row["name"] for row in loose] == []
    for_all = await migrated.owner.fetch(
        "SELECT p.oid::regprocedure::text AS name FROM pg_proc p WHERE p.pronamespace::regnamespace::text = ANY ($1)"
        "   AND has_function_privilege('public', p.oid, 'EXECUTE')",
        list(SCHEMAS),
    )
    assert [row["name"] for row in for_all] == []


async def test_a_session_has_the_servers_limits_and_a_fixed_search_path(database: TestDatabase) -> None:
    pool = await database.open("console")
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path")
    values = {name: await pool.fetchval("SELECT current_setting($1)", name) for name in names}
    await pool.close()
    assert values == {"statement_timeout": "35s", "lock_timeout": "30s",
                      "idle_in_transaction_session_timeout": "15s", "search_path": "pg_catalog"}  # fmt: skip


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
