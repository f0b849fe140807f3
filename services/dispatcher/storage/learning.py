"""What ended attempts teach, read and kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from services.dispatcher.policy.learning import Average, Circuit, Outcome, next_circuit
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.dispatcher.storage", "learning.sql")
_BATCH = 500


class LearningStorage:
    """Circuits and estimates of agents, by the attempts that were watched."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def watch_attempts(self, attempts: Sequence[UUID]) -> None:
        """Look at these when they have ended."""
        await self._database.execute(_SQL["watch_attempts"].sql, list(attempts))

    async def learn(self) -> dict[str, Circuit]:
        """One round over what ended; the circuits that opened or closed. Nothing while another replica learns."""

        async def work(connection: Connection) -> dict[str, Circuit]:
            if not await connection.fetchval(_SQL["hold_learning"].sql):
                return {}
            ended: dict[str, list[Any]] = defaultdict(list)
            costs: dict[str, list[float]] = defaultdict(list)
            for row in await connection.fetch(_SQL["take_outcomes"].sql, _BATCH):
                ended[row["agent"]].append(row)
            for row in await connection.fetch(_SQL["take_costs"].sql, _BATCH):
                costs[row["agent"]].append(float(row["cost"]))
            await connection.execute(_SQL["drop_reservations"].sql, _BATCH)
            if not ended and not costs:
                return {}
            changed = {}
            for known in await connection.fetch(_SQL["read_lessons"].sql, sorted({*ended, *costs})):
                name = known["name"]
                circuit = await self._judge(connection, known, ended[name])
                if circuit is not None:
                    changed[name] = circuit
                await self._write_estimate(connection, known, ended[name], costs[name])
            return changed

        return await self._database.atomically(work)

    async def _judge(self, connection: Connection, known: Any, ended: Sequence[Any]) -> Circuit | None:
        """The agent's circuit if it opened or closed now."""
        if known["circuit_failures"] is None:
            return None
        before = Circuit(tuple(known["failed_tasks"] or ()), known["opened_at"], known["open_until"])
        outcomes = [Outcome(row["task_id"], row["works"]) for row in ended]
        after = next_circuit(before, outcomes, known["now"], known["circuit_failures"], known["circuit_seconds"])
        if after == before:
            return None
        await connection.execute(
            _SQL["write_circuit"].sql, known["name"], list(after.failed_tasks), after.opened_at, after.open_until
        )
        return after if after.open_until != before.open_until else None

    async def _write_estimate(
        self, connection: Connection, known: Any, ended: Sequence[Any], costs: Sequence[float]
    ) -> None:
        done = [row for row in ended if row["tokens"] is not None]
        samples = known["samples"] or 0
        tokens = Average(known["tokens"] or 0.0, samples).with_samples([row["tokens"] for row in done])
        seconds = Average(known["seconds"] or 0.0, samples).with_samples([row["seconds"] for row in done])
        pages = Average(known["tokens_per_page"] or 0.0, known["page_samples"] or 0).with_samples(
            [row["tokens"] / row["pages"] for row in done if row["pages"]]
        )
        cost = Average(known["cost"] or 0.0, known["cost_samples"] or 0).with_samples(costs)
        if done or costs:
            await connection.execute(
                _SQL["write_estimate"].sql, known["name"], tokens.samples, tokens.mean, seconds.mean, pages.samples,
                pages.mean if pages.samples else None, cost.samples, cost.mean if cost.samples else None,
            )  # fmt: skip
