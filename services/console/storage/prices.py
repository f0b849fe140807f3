"""The price table and the wish to have history priced anew."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from services.console.messages.prices import Price
from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "prices.sql")


class PriceStorage:
    """Reads and changes prices; every method that changes works inside a transaction given to it."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def list_prices(
        self, model: str | None, *, with_retired: bool = False, connection: Connection | None = None
    ) -> list[Any]:
        """Prices in force, and those that were replaced when they are wanted."""
        return await (connection or self.database).fetch(_SQL["list_prices"].sql, model, with_retired)

    async def lock_prices(self, connection: Connection) -> None:
        """Hold the price table against other people's changes."""
        await connection.execute(_SQL["lock_prices"].sql)

    async def replace(
        self, connection: Connection, price: Price, *, retired: int | None, ended: int | None,
        valid_to: datetime | None, actor: str,
    ) -> int:  # fmt: skip
        """Put a price into force until `valid_to`, in the place of `retired` and after `ended`; its id."""
        if retired is not None:
            await connection.execute(_SQL["retire_price"].sql, retired)
        if ended is not None:
            await connection.execute(_SQL["end_price"].sql, ended, price.valid_from)
        made: int = await connection.fetchval(
            _SQL["add_price"].sql, price.model, price.currency, price.input_price, price.output_price,
            price.cache_read_price, price.cache_write_price, price.valid_from, valid_to, price.note, actor,
        )  # fmt: skip
        return made

    async def request_repricing(
        self, connection: Connection, actor: str, from_at: datetime, to_at: datetime, models: Sequence[str] | None
    ) -> UUID:
        """Ask for usage in [from, to) at the prices of now."""
        made: UUID = await connection.fetchval(
            _SQL["request_repricing"].sql, actor, from_at, to_at, list(models) if models else None
        )
        return made

    async def read_repricing(self, repricing_id: UUID) -> Any:
        """How far that is, or None."""
        return await self.database.fetchrow(_SQL["read_repricing"].sql, repricing_id)
