"""Agents: their limits, live."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from services.console.messages.agents import Agent, AgentHistory, AgentList
from services.console.messages.requests import NULLABLE_LIMITS, AgentRequest
from services.console.metrics import OPERATOR_ACTIONS
from services.console.policy.enqueueing import storable
from services.console.routes.given import API, PROBLEMS, Actor, Json, Limit
from services.console.storage.agents import SETTINGS, AgentStorage
from services.console.storage.operating import OperatingStorage
from shared.contract.channels import Channel
from shared.contract.errors import MissingError, RejectedError
from shared.contract.shown import shown_agent_state, shown_budget, shown_circuit, shown_estimates
from shared.contract.text import clean_text
from shared.db.notes import Notes
from shared.db.pool import Connection
from shared.runtime.http.problems import StateConflictError

Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]

_SHOWN = ("name", *SETTINGS, "version", "cooldown_until", "created_at", "updated_at", "updated_by")


class AgentRoutes:
    """`/agents`."""

    def __init__(self, storage: AgentStorage, audit: OperatingStorage, notes: Notes) -> None:
        self._storage = storage
        self._audit = audit
        self._notes = notes

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["agents"], responses=PROBLEMS)
        router.add_api_route("/agents", self.all, methods=["GET"], response_model=AgentList)
        router.add_api_route("/agents/{name}", self.show, methods=["GET"], response_model=Agent)
        router.add_api_route(
            "/agents/{name}", self.put, methods=["PUT"], response_model=Agent,
            responses={201: {"model": Agent, "description": "made"}},
        )  # fmt: skip
        router.add_api_route("/agents/{name}/pause", self.pause, methods=["POST"], response_model=Agent)
        router.add_api_route("/agents/{name}/resume", self.resume, methods=["POST"], response_model=Agent)
        router.add_api_route("/agents/{name}/changes", self.changes, methods=["GET"], response_model=AgentHistory)
        return router

    async def all(self) -> Response:
        """All agents with the present use of their limits."""
        return Json({"agents": [_shown(row) for row in await self._storage.list_agents()]})

    async def show(self, name: Name) -> Response:
        """One agent."""
        return await self._answer(name)

    async def put(self, name: Name, body: AgentRequest, actor: Actor) -> Response:
        """Make an agent or change its settings. A version that is not the current one answers 409."""
        note = clean_text(body.note or "")[0].strip() or None
        is_new = await self._write(name, _wanted(body), actor, "set_agent", version=body.version, note=note)
        return await self._answer(name, 201 if is_new else 200)

    async def pause(self, name: Name, actor: Actor) -> Response:
        """Start nothing new of this agent; what runs goes on."""
        await self._write(name, {"paused": True}, actor, "pause_agent", only_existing=True)
        return await self._answer(name)

    async def resume(self, name: Name, actor: Actor) -> Response:
        """Start this agent's tasks again."""
        await self._write(name, {"paused": False}, actor, "resume_agent", only_existing=True)
        return await self._answer(name)

    async def changes(self, name: Name, limit: Limit = 50) -> Response:
        """What changed on an agent, when, and by whom."""
        rows = await self._storage.list_changes(name, limit)
        if not rows:
            raise MissingError(f"There is no agent {name!r}.")
        return Json({"changes": [dict(row) for row in rows]})

    async def _answer(self, name: str, status: int = 200) -> Response:
        rows = await self._storage.list_agents(name)
        if not rows:
            raise MissingError(f"There is no agent {name!r}.")
        return Json(_shown(rows[0]), status)

    async def _write(
        self, name: str, wanted: Mapping[str, Any], actor: str, action: str, *, version: int | None = None,
        only_existing: bool = False, note: str | None = None,
    ) -> bool:  # fmt: skip
        async def work(connection: Connection) -> tuple[bool, bool]:
            await self._audit.act_as(connection, actor)
            await self._storage.lock_agent(connection, name)
            now = await self._storage.read_agent(connection, name)
            if now is None:
                if only_existing:
                    raise MissingError(f"There is no agent {name!r}.")
                await self._create(connection, name, wanted, actor, version)
                return True, True
            if version is not None and version != now["version"]:
                raise StateConflictError(
                    f"The agent is at version {now['version']}, not {version}; read it again.",
                    state={"version": now["version"]},
                )
            settings = {each: wanted.get(each, now[each]) for each in SETTINGS}
            changed = {each: settings[each] for each in SETTINGS if settings[each] != now[each]}
            if changed:
                await self._storage.change_agent(connection, name, settings, actor)
                before = {each: now[each] for each in changed}
                await self._audit.record_actions(connection, actor, action, [_entry(name, before, changed, note)])
            return bool(changed), False

        changed, is_new = await self._audit.database.atomically(work)
        if changed:
            OPERATOR_ACTIONS.labels(action).inc()
            self._notes.send(Channel.CONFIG_CHANGED, [name])
        return is_new

    async def _create(
        self, connection: Connection, name: str, wanted: Mapping[str, Any], actor: str, version: int | None
    ) -> None:
        if version:
            raise StateConflictError("The agent does not exist.", state={"version": 0})
        if not wanted.get("target"):
            raise RejectedError("target: is needed to make an agent", reason="not_valid")
        if await self._storage.create_agent(connection, name, wanted, actor) is None:
            raise StateConflictError("Somebody else just made this agent; read it again.", state={"version": 1})
        await self._audit.record_actions(connection, actor, "create_agent", [_entry(name, None, dict(wanted))])


def _wanted(body: AgentRequest) -> dict[str, Any]:
    """The settings that the body brings; null keeps what is there, except for limits, where it means none."""
    given = {
        name: getattr(body, name)
        for name in body.model_fields_set
        if name in SETTINGS and (name in NULLABLE_LIMITS or getattr(body, name) is not None)
    }
    for name in ("target", "description"):
        if name in given:
            given[name] = clean_text(given[name])[0]
    if "options" in given:
        given["options"] = storable(given["options"], "options")
    return given


def _entry(name: str, before: object, after: object, note: str | None = None) -> dict[str, Any]:
    return {"target": f"agent/{name}", "before": before, "after": after, "note": note}


def _shown(row: Any) -> dict[str, Any]:
    settings = {name: row[name] for name in _SHOWN}
    return {
        **{name: format(value, "f") if isinstance(value, Decimal) else value for name, value in settings.items()},
        "state": shown_agent_state(row),
        "circuit": shown_circuit(row),
        "budget": shown_budget(row),
        "estimates": shown_estimates(row),
    }
