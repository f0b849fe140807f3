"""Statements over the billing tables, as the cost attributor asks them."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest

from shared.testing.wait import until
from tests.integration.workspace.conftest import Story
from tests.support.workspace import WorkspaceDouble

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.sql import StatementResponse

COST = """
SELECT u.usage_metadata.job_run_id AS run_id, SUM(u.usage_quantity * p.pricing.effective_list.default) AS cost,
       MAX(p.currency_code) AS currency, COUNT(*) AS row_count
  FROM system.billing.usage AS u
  JOIN system.billing.list_prices AS p
    ON p.sku_name = u.sku_name AND p.cloud = u.cloud AND p.usage_unit = u.usage_unit
   AND u.usage_end_time >= p.price_start_time
   AND (p.price_end_time IS NULL OR u.usage_end_time < p.price_end_time)
 WHERE u.workspace_id = :workspace_id
   AND u.billing_origin_product = 'JOBS'
   AND array_contains(from_json(:run_ids, 'array<string>'), u.usage_metadata.job_run_id)
   AND u.usage_date >= current_date() - INTERVAL 30 DAYS
 GROUP BY u.usage_metadata.job_run_id
"""


def ask(client: WorkspaceClient, statement: str, **values: str) -> StatementResponse:
    from databricks.sdk.service.sql import StatementParameterListItem

    parameters = [StatementParameterListItem(name=name, value=value) for name, value in values.items()]
    return client.statement_execution.execute_statement(statement, "warehouse", parameters=parameters)


def rows(answer: StatementResponse) -> list[list[str]]:
    assert answer.status is not None and answer.status.state is not None
    assert answer.status.state.value == "SUCCEEDED", answer.status.error
    return answer.result.data_array or [] if answer.result else []


async def test_a_runs_cost_is_its_time_at_the_list_price(story: Story, client: WorkspaceClient) -> None:
    run_id = await story.start(story.job())
    await story.end(run_id)
    workspace_id = str(client.config.workspace_id)
    found = rows(ask(client, COST, workspace_id=workspace_id, run_ids=json.dumps([str(run_id), "1"])))
    assert [(row[0], row[2], row[3]) for row in found] == [(str(run_id), "USD", "1")]
    run = story.run(run_id)
    assert run.execution_duration is not None
    expected = run.execution_duration / 3_600_000 * 4.0 * 0.35
    assert float(found[0][1]) == pytest.approx(expected, rel=0.2, abs=2e-6)
    assert "E" not in found[0][1]


@pytest.mark.parametrize(
    "condition",
    [
        "usage_metadata.job_run_id IN (SELECT explode(from_json(:ids, 'array<string>')))",
        "array_contains(split(:ids, ','), usage_metadata.job_run_id)",
        "usage_metadata.job_run_id IN (SELECT ids.run_id FROM (SELECT explode(split(:ids, ',')) AS run_id) AS ids)",
    ],
)
async def test_run_ids_travel_as_one_parameter(story: Story, client: WorkspaceClient, condition: str) -> None:
    run_id = await story.start(story.job())
    await story.end(run_id)
    ids = json.dumps([str(run_id)]) if "from_json" in condition else f"7,{run_id}"
    statement = (
        f"SELECT record_id, custom_tags['team'] FROM system.billing.usage WHERE {condition} AND workspace_id = :w"
    )
    found = rows(ask(client, statement, ids=ids, w=str(client.config.workspace_id)))
    assert [row[1] for row in found] == ["tests"]


def test_other_applications_consume_too(client: WorkspaceClient) -> None:
    found = rows(
        ask(client, "SELECT billing_origin_product, count(*) FROM system.billing.usage GROUP BY ALL ORDER BY 1")
    )
    assert {row[0] for row in found} == {"JOBS", "MODEL_SERVING", "SQL"}


def test_corrections_can_be_added(client: WorkspaceClient, double: WorkspaceDouble) -> None:
    run_id = str(uuid.uuid4().int)[:15]
    corrections = [("ORIGINAL", 10), ("RETRACTION", -10), ("RESTATEMENT", 8)]
    added = double.http.post(
        "/faults/billing/usage",
        json={
            "rows": [
                {"record_type": kind, "usage_quantity": quantity, "usage_metadata": {"job_run_id": run_id}}
                for kind, quantity in corrections
            ]
        },
    )
    assert added.status_code == 201
    found = rows(
        ask(
            client,
            "SELECT sum(usage_quantity) FROM system.billing.usage WHERE usage_metadata.job_run_id = :run_id",
            run_id=run_id,
        )
    )
    assert float(found[0][0]) == 8


def test_types_are_named_as_databricks_names_them(client: WorkspaceClient) -> None:
    answer = ask(
        client,
        "SELECT record_id, usage_quantity, usage_start_time, usage_date, usage_metadata, count(*) OVER () AS n"
        " FROM system.billing.usage LIMIT 1",
    )
    row = rows(answer)[0]
    assert answer.manifest is not None and answer.manifest.schema is not None
    columns = {one.name: one.type_name.value for one in answer.manifest.schema.columns or [] if one.type_name}
    assert columns == {
        "record_id": "STRING", "usage_quantity": "DECIMAL", "usage_start_time": "TIMESTAMP", "usage_date": "DATE",
        "usage_metadata": "STRUCT", "n": "LONG",
    }  # fmt: skip
    assert row[2].endswith("Z") and json.loads(row[4])["job_id"]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT * FROM system.access.audit", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT nothing FROM system.billing.usage", "nothing"),
        ("SELEC 1", ""),
        ("DROP TABLE system.billing.usage", "queries only"),
        ("SELECT * FROM read_csv('/etc/passwd')", ""),
        ("SELECT :absent", "UNBOUND_SQL_PARAMETER"),
    ],
)
def test_a_bad_statement_fails_with_200_and_a_reason(client: WorkspaceClient, statement: str, reason: str) -> None:
    answer = ask(client, statement)
    assert answer.status is not None and answer.status.state is not None and answer.status.error is not None
    assert answer.status.state.value == "FAILED"
    assert reason in (answer.status.error.message or "")


def test_a_parameter_is_a_value_and_never_code(client: WorkspaceClient) -> None:
    evil = "x' OR '1'='1"
    assert rows(ask(client, "SELECT :x AS x", x=evil)) == [[evil]]


def test_a_large_result_comes_in_chunks(client: WorkspaceClient) -> None:
    answer = ask(client, "SELECT id FROM (SELECT explode(sequence(1, 12000)) AS id) AS numbers ORDER BY id")
    found = rows(answer)
    assert answer.manifest is not None and answer.manifest.total_row_count == 12_000
    result = answer.result
    while result is not None and result.next_chunk_index:
        assert answer.statement_id is not None
        result = client.statement_execution.get_statement_result_chunk_n(answer.statement_id, result.next_chunk_index)
        found += result.data_array or []
    assert [int(row[0]) for row in found] == list(range(1, 12_001))


async def test_a_slow_statement_is_polled_and_can_be_cancelled(
    client: WorkspaceClient, double: WorkspaceDouble
) -> None:
    double.fault("sql.statement", "delay", seconds=60)
    started = client.statement_execution.execute_statement("SELECT 1", "warehouse", wait_timeout="0s")
    assert started.status and started.status.state and started.status.state.value == "PENDING"
    assert started.statement_id is not None
    statement_id = started.statement_id
    double.mend()

    def ended() -> bool:
        status = client.statement_execution.get_statement(statement_id).status
        return status is not None and status.state is not None and status.state.value == "SUCCEEDED"

    await until(ended)
    double.fault("sql.statement", "delay", seconds=60)
    other = client.statement_execution.execute_statement("SELECT 1", "warehouse", wait_timeout="0s").statement_id
    assert other is not None
    client.statement_execution.cancel_execution(other)
    status = client.statement_execution.get_statement(other).status
    assert status and status.state and status.state.value == "CANCELED"
