"""Prices of models, and history at new ones."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from services.console.messages.prices import (
    Price,
    PriceList,
    PricesAnswer,
    PricesRequest,
    Repricing,
    RepricingAnswer,
    RepricingRequest,
)
from services.console.metrics import OPERATOR_ACTIONS
from services.console.policy.prices import COMPARED, place_of
from services.console.routes.given import API, PROBLEMS, Actor, Json
from services.console.storage.operating import OperatingStorage
from services.console.storage.prices import PriceStorage
from shared.contract.channels import Channel
from shared.contract.errors import MissingError
from shared.contract.shown import amount
from shared.db.notes import Notes
from shared.db.pool import Connection

_MONEY = ("input_price", "output_price", "cache_read_price", "cache_write_price")


class PriceRoutes:
    """`/prices`."""

    def __init__(self, storage: PriceStorage, audit: OperatingStorage, notes: Notes) -> None:
        self._storage = storage
        self._audit = audit
        self._notes = notes

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=f"{API}/prices", tags=["costs"], responses=PROBLEMS)
        router.add_api_route("", self.list, methods=["GET"], response_model=PriceList)
        router.add_api_route("", self.put, methods=["PUT"], response_model=PricesAnswer)
        router.add_api_route(
            "/repricings", self.reprice, methods=["POST"], status_code=202, response_model=RepricingAnswer
        )
        router.add_api_route("/repricings/{repricing_id}", self.repricing, methods=["GET"], response_model=Repricing)
        return router

    async def list(
        self, model: Annotated[str | None, Query(max_length=200)] = None,
        retired: Annotated[bool, Query(description="also prices that were replaced")] = False,
    ) -> Response:  # fmt: skip
        """The price table."""
        rows = await self._storage.list_prices(model, with_retired=retired)
        return Json({"prices": [_shown(row) for row in rows]})

    async def put(self, actor: Actor, body: PricesRequest) -> Response:
        """Put prices into force. What was priced before stays as it is until somebody asks for a repricing."""

        async def work(connection: Connection) -> int:
            await self._audit.act_as(connection, actor)
            await self._storage.lock_prices(connection)
            entries = [entry for price in body.prices if (entry := await self._put_one(connection, price, actor))]
            await self._audit.record_actions(connection, actor, "set_price", entries)
            return len(entries)

        changed = await self._storage.database.atomically(work)
        OPERATOR_ACTIONS.labels("set_price").inc(changed)
        return Json({"changed": changed, "unchanged": len(body.prices) - changed})

    async def _put_one(self, connection: Connection, price: Price, actor: str) -> dict[str, Any] | None:
        place = place_of(price, await self._storage.list_prices(price.model, connection=connection))
        if not place.is_new:
            return None
        price_id = await self._storage.replace(
            connection, price, retired=None if place.retired is None else place.retired["id"], ended=place.ended,
            valid_to=place.valid_to, actor=actor,
        )  # fmt: skip
        before = None if place.retired is None else _audited(place.retired, place.retired["id"])
        after = _audited(price.model_dump(), price_id)
        return {"target": f"price/{price.model}", "before": before, "after": after}

    async def reprice(self, actor: Actor, body: RepricingRequest) -> Response:
        """Have usage of a time priced at the prices of now; every old figure is kept beside the new one."""

        async def work(connection: Connection) -> UUID:
            await self._audit.act_as(connection, actor)
            made = await self._storage.request_repricing(connection, actor, body.from_at, body.to_at, body.models)
            wish = {"from": body.from_at, "to": body.to_at, "models": body.models}
            entry = {"target": f"repricing/{made}", "before": None, "after": wish}
            await self._audit.record_actions(connection, actor, "reprice", [entry])
            return made

        repricing_id = await self._storage.database.atomically(work)
        OPERATOR_ACTIONS.labels("reprice").inc()
        self._notes.send(Channel.COST_REQUESTED, [repricing_id])
        where = {"Location": f"{API}/prices/repricings/{repricing_id}"}
        return Json({"repricing_id": repricing_id}, 202, where)

    async def repricing(self, repricing_id: UUID) -> Response:
        """How far a repricing is, and by how much the sums changed."""
        row = await self._storage.read_repricing(repricing_id)
        if row is None:
            raise MissingError(f"There is no repricing {repricing_id}.")
        return Json(dict(row))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: amount(row[name]) for name in _MONEY}}


def _audited(price: Mapping[str, Any], price_id: int) -> dict[str, Any]:
    """A price as the audit keeps it."""
    plain = {name: price[name] for name in COMPARED}
    texts = {name: format(value, "f") if isinstance(value, Decimal) else value for name, value in plain.items()}
    return {"id": price_id, "currency": price["currency"], "valid_from": price["valid_from"], **texts}
