"""What nobody asks for again is removed, and nothing else."""

from __future__ import annotations

from services.sweeper.loops import ForgetLoop
from services.sweeper.settings import SweeperSettings
from services.sweeper.storage import SweeperStorage
from tests.conftest import TestDatabase


async def test_spending_is_forgotten_once_it_weighs_on_nothing(database: TestDatabase) -> None:
    await database.owner.execute(
        "INSERT INTO lockkeeper.token_spending (agent, at, tpm) "
        "SELECT 'parser', lockkeeper.clock() - n * interval '1 minute', 1 FROM generate_series(0, 30) AS n"
    )
    pool = await database.open("sweeper")
    assert not await ForgetLoop(SweeperStorage(pool, "s"), SweeperSettings()).run_once()
    oldest = await database.owner.fetchval("SELECT lockkeeper.clock() - min(at) FROM lockkeeper.token_spending")
    assert await database.owner.fetchval("SELECT count(*) FROM lockkeeper.token_spending") == 10
    assert oldest.total_seconds() < 600
    await pool.close()
