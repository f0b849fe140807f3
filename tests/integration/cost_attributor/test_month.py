"""A generated month attributed to the cent, in any order of arrival, with attributors killed at random moments.

`./dev test integration -k month` is the short form. LOCKKEEPER_TEST_MONTH says how many tasks, LOCKKEEPER_TEST_SEED which
month: the facts and the order of their arrival are the same every time. The moments of the kills are not, since they
are the machine's.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from services.cost_attributor.gateways import BillingTables, Traces
from services.cost_attributor.loops import AnswerCostRequests, AttributeTraces
from services.cost_attributor.settings import CostAttributorSettings
from services.cost_attributor.storage import CostStorage
from shared.contract.errors import LockkeeperError, TransientError
from shared.contract.ownership import role_of
from shared.db.notes import Notes
from shared.vendors.mlflow_traces import TraceReader
from tests.conftest import TestDatabase
from tests.support.month import AGENTS, END, MODELS, PRICE_CHANGE, START, AttemptFact, Month, Truth
from tests.support.month_vendors import DuckWarehouse, TrackingServer

TASKS = int(os.environ.get("LOCKKEEPER_TEST_MONTH", "300"))
SEED = int(os.environ.get("LOCKKEEPER_TEST_SEED", "7"))
KILLS = 2
"""In each round."""
ROUNDS = 4
TRIES = 20
_DYING = (asyncio.CancelledError, LockkeeperError, OSError, AssertionError)
CENT = Fraction(1, 100)
KEEP = ("llm_cost", "compute_cost", "cost_status", "llm_cost_source", "input_tokens", "output_tokens")


@pytest.fixture
def tracking() -> Iterator[TrackingServer]:
    server = TrackingServer()
    yield server
    server.stop()


class Bench:
    """The database of a month, its outside, and attributors that live and die on it."""

    def __init__(self, database: TestDatabase, tracking: TrackingServer, month: Month) -> None:
        self.database, self.tracking, self.month = database, tracking, month
        self.warehouse = DuckWarehouse()
        self.reader = TraceReader(tracking.url, ["lockkeeper"])
        self.random = random.Random(SEED)
        self.now = START
        self.kills = 0

    async def set_clock(self, now: datetime) -> None:
        """What the time is for every process that starts from here on."""
        self.now = self.tracking.now = now
        await self.database.owner.execute(
            f"ALTER DATABASE {self.database.name} SET lockkeeper.clock = '{now.isoformat()}'"
        )

    async def live(self, *, kill_after: float | None) -> bool:
        """Two attributors at work until all is done, or until both are killed; whether they came to the end."""
        working = [asyncio.create_task(self._process(name)) for name in ("a", "b")]
        _, unfinished = await asyncio.wait(working, timeout=kill_after)
        if unfinished:
            self.kills += 1
            # Nothing is given back and nothing ends in order: the connections are gone in the middle of a word.
            await self.database.owner.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1 AND datname = $2",
                role_of("cost_attributor"), self.database.name,
            )  # fmt: skip
        for each in unfinished:
            each.cancel()
        ended = await asyncio.gather(*working, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException) and not (unfinished and isinstance(error, _DYING)):
                raise error
        return not unfinished

    async def _process(self, name: str) -> None:
        pool = await self.database.open("cost_attributor", size=2)
        notes = Notes(pool)
        storage = CostStorage(pool, f"{name}-{time.monotonic_ns()}")
        settings = CostAttributorSettings(start_seconds=0)
        traces = AttributeTraces(storage, Traces(self.reader), notes, settings)
        bills = AnswerCostRequests(storage, BillingTables(self.warehouse, None), notes, settings)  # type: ignore[arg-type]
        try:
            while await self._turn(traces) or await self._turn(bills):
                pass
        finally:
            with suppress(LockkeeperError, OSError):
                await pool.close()

    @staticmethod
    async def _turn(loop: AttributeTraces | AnswerCostRequests) -> bool:
        """One round, tried again as the runtime does while the database is away."""
        for _ in range(TRIES):
            with suppress(TransientError):
                return await loop.run_once()
        raise AssertionError(f"{loop.name} does not get through")

    async def work(self, longest: float) -> None:
        """A few lives that end by a kill, then one that comes to its end."""
        for _ in range(KILLS):
            if await self.live(kill_after=self.random.uniform(0.02, longest)):
                break
            # The dead hold leases; time passes.
            await self.set_clock(self.now + timedelta(minutes=20))
        while not await self.live(kill_after=600):
            await self.set_clock(self.now + timedelta(minutes=20))

    async def ask(self) -> None:
        """For the bill of the month; the last retry of a task of its last hour begins a little after it."""
        await self.database.owner.execute(
            "INSERT INTO lockkeeper.cost_requests (requested_by, from_at, to_at, requested_at) VALUES ('me', $1, $2, $3)",
            START, END + timedelta(days=1), self.now,
        )  # fmt: skip


async def stage_prices(owner: Any) -> None:
    for agent in AGENTS:
        await owner.execute("INSERT INTO lockkeeper.agents (name, target, tasks_per_run) VALUES ($1, 'job', 5)", agent)
    for model, (currency, before, after) in MODELS.items():
        for prices, since, until in ((before, START - timedelta(days=99), PRICE_CHANGE), (after, PRICE_CHANGE, None)):
            await owner.execute(
                "INSERT INTO lockkeeper.model_prices (model, currency, input_price, output_price, cache_read_price, "
                "cache_write_price, valid_from, valid_to) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                model, currency, *(Decimal(each) for each in prices), since, until,
            )  # fmt: skip


async def arrive(bench: Bench, attempts: list[AttemptFact], known: set[Any]) -> None:
    """Tasks and attempts that ended appear, in any order."""
    owner = bench.database.owner
    tasks = {a.task_id: a for a in attempts if a.task_id not in known}
    known |= set(tasks)
    await owner.copy_records_to_table(
        "tasks", schema_name="lockkeeper", columns=["id", "agent", "customer", "status", "created_at", "finished_at"],
        records=[(t, a.agent, a.customer, bench.month.statuses[t], a.leased_at, END) for t, a in tasks.items()],
    )  # fmt: skip
    states = {True: "stored", False: None}
    columns = [
        "id", "task_id", "agent", "attempt", "status", "run_id", "leased_at", "submitted_at", "started_at",
        "finished_at", "usage", "trace_state", "pages",
    ]  # fmt: skip
    rows = [
        (a.id, a.task_id, a.agent, a.number, a.outcome, a.run_id, a.leased_at, a.leased_at if a.run_id else None,
         a.started_at, a.finished_at, a.usage, "unavailable" if a.usage and not a.traces else states[bool(a.traces)], 2)
        for a in attempts
    ]  # fmt: skip
    bench.random.shuffle(rows)
    await owner.copy_records_to_table("task_attempts", schema_name="lockkeeper", columns=columns, records=rows)
    for attempt in attempts:
        bench.tracking.store(str(attempt.id), attempt.traces, attempt.started_at)


async def digest(owner: Any) -> str:
    found: str = await owner.fetchval(
        "SELECT md5(string_agg(line::text, '' ORDER BY line::text)) FROM ("
        "SELECT to_jsonb(c) AS line FROM lockkeeper.cost_entries c "
        "UNION ALL SELECT to_jsonb(s) FROM lockkeeper.spending s "
        f"UNION ALL SELECT to_jsonb(x) FROM (SELECT id, {', '.join(KEEP)} FROM lockkeeper.task_attempts) x) l"
    )
    return found


@pytest.mark.timeout(300 + TASKS // 20)
async def test_b01_b03_m05_a_month_is_attributed_to_the_cent(database: TestDatabase, tracking: TrackingServer) -> None:
    month = Month(TASKS, SEED)
    bench = Bench(database, tracking, month)
    await stage_prices(database.owner)
    waiting = list(month.attempts)
    bills = list(month.bills)
    bench.random.shuffle(bills)
    known: set[Any] = set()
    started = time.monotonic()
    ends = [START + (END - START) * n / ROUNDS for n in range(1, ROUNDS + 1)]
    for now in [*ends, END + timedelta(days=2), END + timedelta(days=20)]:
        await bench.set_clock(max(now, bench.now))
        await arrive(bench, [a for a in waiting if a.finished_at <= now], known)
        waiting = [a for a in waiting if a.finished_at > now]
        bench.warehouse.grow(row for row in bills if row.seen_at <= now)
        bills = [row for row in bills if row.seen_at > now]
        await bench.ask()
        await bench.work(longest=0.5 + TASKS / 4000)
    seconds = time.monotonic() - started
    assert not waiting and not bills
    await compare(bench, Truth(month))
    before = await digest(database.owner)
    await database.owner.execute(
        "UPDATE lockkeeper.task_attempts SET cost_status = 'pending', cost_checks = 0, cost_checked_at = NULL"
    )
    await bench.set_clock(bench.now + timedelta(days=1))
    await bench.ask()
    await bench.work(longest=0.5 + TASKS / 4000)
    assert await digest(database.owner) == before, "reading everything again changed something"
    bench.reader.close()
    lines = await database.owner.fetchval("SELECT count(*) FROM lockkeeper.cost_entries")
    print(
        f"{TASKS} tasks, {len(month.attempts)} attempts, {len(month.bills)} rows of the bill, {lines} lines, "
        f"{bench.kills} kills, {bench.warehouse.statements} statements, {tracking.searches} searches, {seconds:.0f} s"
    )
    if TASKS <= 10_000:
        assert bench.kills > 0


async def compare(bench: Bench, truth: Truth) -> None:
    """Attempt by attempt, run by run, and in every sum that people see."""
    owner = bench.database.owner
    rows = {row["id"]: row for row in await owner.fetch("SELECT * FROM lockkeeper.task_attempts")}
    assert len(rows) == len(bench.month.attempts)
    by_run: dict[int, Fraction] = defaultdict(Fraction)
    days: dict[tuple[str, Any], list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    for attempt in bench.month.attempts:
        row, llm, compute = rows[attempt.id], truth.llm[attempt.id], truth.compute[attempt.id]
        assert exact(row["llm_cost"]) == (None if llm is None else llm.get("USD")), attempt
        assert (row["cost_status"] == "unknown") == (llm is None), attempt
        assert (compute is None) == (row["compute_cost"] is None), attempt
        if compute is not None:
            assert abs(Fraction(row["compute_cost"]) - compute) < Fraction(1, 10**9), attempt
            by_run[attempt.run_id or 0] += Fraction(row["compute_cost"])
        day = days["agent:" + attempt.agent, attempt.leased_at.date()]
        day[0] += Fraction(row["llm_cost"] or 0)
        day[1] += Fraction(row["compute_cost"] or 0)
    by_run.pop(0, None)
    assert by_run == truth.of_run, "the parts of a run add up to its bill exactly"
    spent = {
        ("agent:" + row["name"], row["day"]): [Fraction(row["llm_cost"]), Fraction(row["compute_cost"])]
        for row in await owner.fetch("SELECT * FROM lockkeeper.spending WHERE scope = 'agent'")
    }
    assert spent == {key: sums for key, sums in days.items() if any(sums)}
    await compare_sums(bench, truth)
    assert await owner.fetchval("SELECT count(*) FROM lockkeeper.run_bills WHERE status <> 'final'") == len(
        set(bench.month.runs()) - {row.run_id for row in bench.month.bills}
    )


async def compare_sums(bench: Bench, truth: Truth) -> None:
    """What the views of BI and of the console say by agent, customer, status, outcome and currency."""
    owner = bench.database.owner
    for dimension in ("agent", "customer", "status", "outcome"):
        expected: dict[tuple[Any, str], Fraction] = defaultdict(Fraction)
        for attempt in bench.month.attempts:
            key = bench.month.statuses[attempt.task_id] if dimension == "status" else getattr(attempt, dimension)
            for currency, money in (truth.llm[attempt.id] or {}).items():
                expected[key, currency] += money
            expected[key, "USD"] += truth.compute[attempt.id] or 0
        if dimension == "outcome":
            found = await owner.fetch(
                "SELECT outcome AS key, currency, sum(amount) AS total FROM lockkeeper.cost_lines GROUP BY 1, 2"
            )
        else:
            found = await owner.fetch(
                f"SELECT {dimension} AS key, currency, sum(coalesce(llm_cost, 0) + coalesce(compute_cost, 0)) AS total "
                "FROM lockkeeper.work_costs GROUP BY 1, 2"
            )
        totals = {(row["key"], row["currency"]): Fraction(row["total"]) for row in found if row["total"]}
        assert totals.keys() == {key for key, money in expected.items() if money}
        for key, total in totals.items():
            assert abs(total - expected[key]) < CENT / 1000, (dimension, key)


def exact(amount: Decimal | None) -> Fraction | None:
    return None if amount is None else Fraction(amount)
