"""A statement on a warehouse: cold, slow, long, refused; the unchanged SDK against the workspace double."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.contract.errors import RejectedError, TransientError
from shared.vendors.billing import Warehouse
from shared.vendors.workspace import Workspace
from tests.support.workspace import WorkspaceDouble

NUMBERS = "SELECT explode(split(:text, ',')) AS number, :other AS other"


@pytest.fixture
def vendor(workspace: WorkspaceDouble) -> Iterator[Workspace]:
    assert workspace.process.poll() is None
    client = Workspace(threads=2, retry_seconds=3, http_seconds=30)
    yield client
    client.close()


async def test_a_result_of_many_chunks_is_read_whole(vendor: Workspace) -> None:
    wanted = [str(number) for number in range(12_345)]
    rows = await Warehouse(vendor, "w").query(NUMBERS, {"text": ",".join(wanted), "other": "it's ':text'"})
    assert [row["number"] for row in rows] == wanted
    assert {row["other"] for row in rows} == {"it's ':text'"}
    assert await Warehouse(vendor, "w").query("SELECT 1 AS one LIMIT 0", {}) == []


async def test_a_cold_warehouse_is_waited_for(vendor: Workspace, workspace: WorkspaceDouble) -> None:
    workspace.fault("sql.statement", "delay", seconds=6.5)
    assert await Warehouse(vendor, "w", wait_seconds=5).query("SELECT 1 AS one", {}) == [{"one": "1"}]


async def test_a_statement_that_takes_too_long_is_cancelled_and_tried_later(
    vendor: Workspace, workspace: WorkspaceDouble
) -> None:
    workspace.fault("sql.statement", "delay", seconds=60)
    with pytest.raises(TransientError, match="did not finish within 6 s") as late:
        await Warehouse(vendor, "w", statement_seconds=6, wait_seconds=5).query("SELECT 1 AS one", {})
    assert late.value.reason == "deadline"


async def test_a_fault_of_the_warehouse_passes_and_one_of_the_statement_does_not(
    vendor: Workspace, workspace: WorkspaceDouble
) -> None:
    workspace.fault("sql.statement", "status", times=1, message="the cluster went away")
    with pytest.raises(TransientError, match="the cluster went away"):
        await Warehouse(vendor, "w").query("SELECT 1 AS one", {})
    with pytest.raises(RejectedError, match="PARSE_SYNTAX_ERROR"):
        await Warehouse(vendor, "w").query("SELECT FROM WHERE", {})
    assert await Warehouse(vendor, "w").workspace_id() == "4711000000000001"
