"""Customers: their budgets over all agents, live."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from services.console.messages.agents import Customer, CustomerList
from services.console.messages.requests import CustomerRequest
from services.console.metrics import OPERATOR_ACTIONS
from services.console.routes.given import API, PROBLEMS, Actor, Json
from services.console.storage.customers import CustomerStorage
from services.console.storage.operating import OperatingStorage
from shared.contract.channels import Channel
from shared.contract.shown import shown_budget
from shared.contract.text import clean_text
from shared.db.notes import Notes
from shared.db.pool import Connection
from shared.runtime.http.problems import StateConflictError

Name = Annotated[str, Path(min_length=1, max_length=200)]

_BUDGETS = ("daily_budget", "monthly_budget")
_SHOWN = ("name", *_BUDGETS, "version", "updated_at", "updated_by")


class CustomerRoutes:
    """`/customers`."""

    def __init__(self, storage: CustomerStorage, audit: OperatingStorage, notes: Notes) -> None:
        self._storage = storage
        self._audit = audit
        self._notes = notes

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["customers"], responses=PROBLEMS)
        router.add_api_route("/customers", self.all, methods=["GET"], response_model=CustomerList)
        router.add_api_route("/customers/{name:path}", self.put, methods=["PUT"], response_model=Customer)
        return router

    async def all(self) -> Response:
        """The customers that have budgets, and what these have left."""
        return Json({"customers": [_shown(row) for row in await self._storage.list_customers()]})

    async def put(self, name: Name, body: CustomerRequest, actor: Actor) -> Response:
        """Set a customer's budgets. They hold from the next claim on; a version that is not current answers 409."""
        name = clean_text(name)[0]
        if await self._write(name, body, actor):
            OPERATOR_ACTIONS.labels("set_customer").inc()
            self._notes.send(Channel.CONFIG_CHANGED)
        return Json(_shown((await self._storage.list_customers(name))[0]))

    async def _write(self, name: str, body: CustomerRequest, actor: str) -> bool:
        async def work(connection: Connection) -> bool:
            await self._audit.act_as(connection, actor)
            now = await self._storage.lock_customer(connection, name)
            version = 0 if now is None else now["version"]
            if body.version is not None and body.version != version:
                raise StateConflictError(
                    f"The customer is at version {version}, not {body.version}; read it again.",
                    state={"version": version},
                )
            before = {each: None if now is None else now[each] for each in _BUDGETS}
            after = {each: getattr(body, each) if each in body.model_fields_set else before[each] for each in _BUDGETS}
            if now is not None and before == after:
                return False
            budgets = (after["daily_budget"], after["monthly_budget"])
            if await self._storage.write_customer(connection, name, budgets, actor, version) is None:
                raise StateConflictError("Somebody else just set these budgets; read them again.", state={"version": 1})
            entry = {"target": f"customer/{name}", "before": None if now is None else before, "after": after}
            await self._audit.record_actions(connection, actor, "set_customer", [entry])
            return True

        return await self._audit.database.atomically(work)


def _shown(row: Any) -> dict[str, Any]:
    told = {name: row[name] for name in _SHOWN}
    return {
        **{name: format(value, "f") if isinstance(value, Decimal) else value for name, value in told.items()},
        "budget": shown_budget(row),
    }
