"""Who did what: every operation of the API that changes something leaves a row that says so."""

from __future__ import annotations

from typing import Any

from tests.integration.console.conftest import API, Console
from tests.support import hostile
from tests.support.batch import page

NAMED_IN_THE_ROW = {
    "POST /documents": "SELECT uploaded_by FROM lockkeeper.documents",
    "POST /tasks": "SELECT created_by FROM lockkeeper.tasks",
    "POST /costs/refresh": "SELECT requested_by FROM lockkeeper.cost_requests",
}
"""What only adds a row of its own: the row names its maker, and there is no before."""
PRICE = {"model": "m", "input_price": "1", "output_price": "2", "valid_from": "2026-01-01T00:00:00Z"}
RANGE = {"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z"}


def acts(waiting: list[str], ended: list[str]) -> dict[str, list[tuple[str, Any]]]:
    """For each operation the calls that show it, and of the last of them the audit is judged."""
    return {
        "PATCH /tasks/{task_id}": [(f"/tasks/{waiting[0]}", {"priority": 7})],
        "POST /tasks/{task_id}/cancel": [(f"/tasks/{waiting[0]}/cancel", None)],
        "POST /tasks/{task_id}/retry": [(f"/tasks/{ended[0]}/retry", None)],
        "POST /tasks/{task_id}/reprocess": [(f"/tasks/{ended[1]}/reprocess", {})],
        "POST /tasks/bulk": [("/tasks/bulk", {"action": "cancel", "filter": {"all": "true"}})],
        "PUT /agents/{name}": [("/agents/reader", {"max_tpm": 5}), ("/agents/reader", {"max_tpm": 6})],
        "POST /agents/{name}/pause": [("/agents/reader/pause", None)],
        "POST /agents/{name}/resume": [("/agents/reader/resume", None)],
        "PUT /customers/{name}": [("/customers/c", {"daily_budget": "1"}), ("/customers/c", {"daily_budget": "2"})],
        "PUT /prices": [("/prices", {"prices": [PRICE]}), ("/prices", {"prices": [{**PRICE, "input_price": "3"}]})],
        "POST /prices/repricings": [("/prices/repricings", RANGE)],
    }


FIRST_OF_ITS_KIND = {"POST /prices/repricings"}


async def test_every_operation_that_changes_something_is_audited_with_before_and_after(console: Console) -> None:
    document = (await console.http.get(f"{API}/openapi.json")).json()
    unsafe = hostile.Places(document, API, {}, {}).that_change_something()
    await console.make_agent()
    waiting = [(await console.enqueue())["id"] for _ in range(3)]
    ended = [(await console.enqueue())["id"] for _ in range(2)]
    await console.database.owner.execute(
        "UPDATE lockkeeper.tasks SET status = 'failed', finished_at = now(), version = version + 1, verb = 'fail', "
        'error = \'{"reason": "x"}\' WHERE id = ANY ($1::uuid[])',
        ended,
    )
    known = acts(waiting, ended)
    assert unsafe == set(known) | set(NAMED_IN_THE_ROW), "an operation that nobody thought of here"
    for operation, calls in known.items():
        latest = None
        for path, body in calls:
            latest = await console.database.owner.fetchval("SELECT max(id::text) FROM lockkeeper.operator_audit")
            answer = await console.http.request(operation.split()[0], API + path, json=body)
            assert answer.is_success, (operation, answer.text)
        rows = await console.database.owner.fetch(
            "SELECT * FROM lockkeeper.operator_audit WHERE id::text > coalesce($1, '')", latest
        )
        assert rows, f"{operation} left nothing"
        for row in rows:
            assert (row["actor"], bool(row["action"]), bool(row["target"])) == ("local", True, True), operation
            assert row["after"] is not None, operation
            assert row["before"] is not None or operation in FIRST_OF_ITS_KIND, operation
            assert row["before"] != row["after"], operation


async def test_what_only_adds_a_row_names_its_maker_there(storing_console: Console) -> None:
    await storing_console.make_agent()
    await storing_console.enqueue()
    await storing_console.post("/costs/refresh", 202, json={})
    await storing_console.post("/documents", 201, files=[("files", ("a.pdf", page(1), "application/pdf"))])
    for operation, query in NAMED_IN_THE_ROW.items():
        assert await storing_console.database.owner.fetchval(query) == "local", operation
