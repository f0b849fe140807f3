from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from services.notifier.storage import NotifierStorage
from shared.contract.task_filter import TaskFilter
from tests.conftest import TestDatabase


async def test_the_filter_says_of_one_row_what_the_database_says_of_all(database: TestDatabase) -> None:
    start = datetime(2026, 11, 30, tzinfo=UTC)
    names = ["Invoice 100%.pdf", "RECHNUNG_ä.pdf", None]
    for n, (agent, customer, name) in enumerate(itertools.product(["a", "b"], ["X & Y", "z_1", None], names)):
        document = None
        if name is not None:
            document = await database.owner.fetchval(
                "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, uploaded_by) "
                "VALUES ($1, $2, 'x', 1, 'local') RETURNING id",
                name, f"/{n}",
            )  # fmt: skip
        await database.owner.execute(
            "INSERT INTO lockkeeper.tasks (agent, customer, document_id, created_at, labels) VALUES ($1, $2, $3, $4, $5)",
            agent, customer, document, start + timedelta(minutes=n), {"batch": str(n % 3)} if n % 2 else {},
        )  # fmt: skip
    storage = NotifierStorage(pool := await database.open("notifier"))
    everything = await storage.list_tasks(TaskFilter(), 500)
    at = (start + timedelta(minutes=5)).isoformat()
    some_id = str(everything[3]["id"])
    queries = [
        [("agent", "a")], [("customer", "X & Y"), ("customer", "z_1")], [("from", at)], [("to", at)],
        [("text", "100%")], [("text", "0%.")], [("text", "z_1")], [("text", "z1")], [("text", "rechnung")],
        [("text", some_id[-6:])], [("label", "batch")], [("label", "batch=1")], [("label", "batch=1"), ("agent", "b")],
        [("label", "none")], [("text", "\\")],
    ]  # fmt: skip
    for pairs in queries:
        chosen = TaskFilter.parse(pairs)
        found = {row["id"] for row in await storage.list_tasks(chosen, 500)}
        assert found == {row["id"] for row in everything if chosen.matches(row)}, pairs
        assert (await storage.summarise_tasks(chosen))["enqueued"] == len(found)
    await pool.close()
