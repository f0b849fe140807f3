"""What agents and customers have spent by day: exact at every commit, whatever was corrected in between."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import asyncpg

from shared.db.migrate import migrations
from shared.vendors.mlflow_traces import TraceFacts
from tests.conftest import TestDatabase
from tests.integration.cost_attributor.conftest import Attributor, Ended
from tests.integration.cost_attributor.test_ledger import learn, trace

MakeAttributor = Callable[..., Attributor]


async def spent(owner: asyncpg.Connection) -> dict[tuple[str, str, str], tuple[Decimal, Decimal]]:
    rows = await owner.fetch("SELECT * FROM lockkeeper.spending ORDER BY scope, name, day")
    return {(row["scope"], row["name"], row["day"].isoformat()): (row["llm_cost"], row["compute_cost"]) for row in rows}


async def costs(attributor: Attributor, ended: Ended, **own: Any) -> None:
    await ended.owner.execute("UPDATE lockkeeper.task_attempts SET cost_status = 'pending'")
    told: TraceFacts = trace(**own)
    await learn(attributor, ended, told)


async def test_spending_follows_the_ledger_and_its_corrections(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt()
    owner = database.owner
    # Late in the day of one zone, and the next day of the clock that budgets go by.
    await owner.execute("UPDATE lockkeeper.task_attempts SET leased_at = '2026-03-01 23:30-02' WHERE id = $1", attempt)
    await owner.execute("UPDATE lockkeeper.tasks SET customer = 'acme'")
    it = make_attributor()
    await costs(it, ended, cost=Decimal("0.5"))
    day = "2026-03-02"
    expected = {("agent", "parser", day): (Decimal("0.5"), 0), ("customer", "acme", day): (Decimal("0.5"), 0)}
    assert await spent(owner) == expected
    await costs(it, ended, cost=Decimal("0.5"))
    assert await spent(owner) == expected
    await costs(it, ended, cost=Decimal("0.2"))
    assert set((await spent(owner)).values()) == {(Decimal("0.2"), 0)}


async def test_what_was_spent_before_is_brought_over_and_counted_once(
    database: TestDatabase, make_attributor: MakeAttributor, ended: Ended
) -> None:
    await ended.attempt()
    it = make_attributor()
    await costs(it, ended, cost=Decimal("0.5"))
    before = await spent(database.owner)
    await database.owner.execute("UPDATE lockkeeper.spending SET llm_cost = 7")
    (again,) = [each.sql for each in migrations() if each.number == 41]
    async with database.owner.transaction():
        await database.owner.execute(again)
    assert await spent(database.owner) == before
