"""The double's own admin API, ``/faults``: rules that make a call or a run go wrong.

A rule names an operation (``jobs.run_now``, ``files.*``), a run (``run``), a model answer (``serving.answer``)
or a statement (``sql.statement``), what goes wrong (``kind``), how often (``times``, after letting ``skip``
calls pass, with ``probability``) and optionally what must match. It answers to callers on this machine only.
"""

from __future__ import annotations

import asyncio
import fnmatch
import random
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from deploy.local.workspace.operation import Answer, ApiError, JsonObject, Operation, json_body, json_response

Kind = Literal[
    # of any call: a status instead of the effect, or after it; a slow, silent or broken connection
    "status", "status_after_effect", "delay", "hang", "drop", "drop_after_effect",
    # of files.upload
    "disk_full",
    # of serving.answer
    "nonsense", "empty",
    # of run: hold it in a state, end it so, end it well without the agent, kill its process
    "hold", "end", "die_silently", "kill",
]  # fmt: skip
CALL_KINDS = frozenset({"status", "status_after_effect", "delay", "hang", "drop", "drop_after_effect"})
RUN = "run"
MODEL_ANSWER = "serving.answer"
STATEMENT = "sql.statement"

_ERROR_CODES = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    409: "ABORTED",
    429: "REQUEST_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
}
_LONG_SECONDS = 3600.0


class FaultRule(BaseModel):
    """One way in which the workspace misbehaves."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(default_factory=lambda: uuid.uuid4().hex[:12])
    api: str = Field(description="Operation name or pattern, or run, serving.answer, sql.statement")
    kind: Kind
    times: int | None = Field(default=None, ge=1, description="Uses before the rule is spent; none is without end")
    skip: int = Field(default=0, ge=0, description="Matching calls that pass unharmed first")
    probability: float = Field(default=1.0, gt=0, le=1)
    match: JsonObject = Field(default_factory=dict, description="Subset of the call: path, query, body, client_id …")
    seconds: float | None = Field(default=None, ge=0, description="How long delay, hang, hold last; when kill strikes")
    status: int = Field(default=503, ge=400, le=599)
    error_code: str | None = None
    message: str = "made by a fault rule"
    retry_after: str | None = None
    when: Literal["before", "after"] = Field(default="before", description="Hold or end before or after the agent")
    state: str = Field(default="PENDING", description="Life-cycle state for hold and end; any text is allowed")
    result: str | None = Field(default=None, description="Result state for end")
    code: str | None = Field(default=None, description="Termination code for end")
    used: int = Field(default=0, exclude=False)
    passed: int = 0

    def error(self) -> ApiError:
        """The error reply this rule asks for."""
        code = self.error_code or _ERROR_CODES.get(self.status, "INTERNAL_ERROR")
        headers = {"Retry-After": self.retry_after} if self.retry_after is not None else {}
        return ApiError(self.status, code, self.message, headers=headers)


class FaultBook:
    """The rules in force, first added first used."""

    def __init__(self) -> None:
        self._rules: dict[str, FaultRule] = {}
        self._changed = asyncio.Event()
        self._random = random.Random(7)  # noqa: S311 - repeatable chaos, not a secret

    def add(self, rule: FaultRule) -> None:
        """Put a rule in force."""
        self._rules[rule.id] = rule

    def remove(self, rule_id: str) -> bool:
        """Take one rule out; calls that hang on it go on."""
        found = self._rules.pop(rule_id, None) is not None
        self._wake()
        return found

    def clear(self) -> None:
        """Take every rule out."""
        self._rules.clear()
        self._wake()

    def listed(self) -> list[FaultRule]:
        """The rules in force."""
        return list(self._rules.values())

    def __bool__(self) -> bool:
        return bool(self._rules)

    def take(self, api: str, kinds: Collection[str], facts: Mapping[str, Any]) -> FaultRule | None:
        """The rule that strikes this call, used up by one; None when the call goes well."""
        for rule in self._rules.values():
            if rule.kind not in kinds or not fnmatch.fnmatchcase(api, rule.api) or not _within(rule.match, facts):
                continue
            if rule.times is not None and rule.used >= rule.times:
                continue
            if rule.passed < rule.skip:
                rule.passed += 1
                continue
            if self._random.random() > rule.probability:
                continue
            rule.used += 1
            return rule
        return None

    async def outlast(self, rule: FaultRule, default_seconds: float) -> None:
        """Wait until the rule's time is over or somebody removes the rule."""
        deadline = time.monotonic() + (default_seconds if rule.seconds is None else rule.seconds)
        changed = self._changed
        while rule.id in self._rules and (left := deadline - time.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
            changed = self._changed

    def _wake(self) -> None:
        """Let everybody who waits for the end of a rule look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def guard(self, operation: Operation) -> Answer:
        """The operation's answer, with the rules for calls applied around it."""

        async def answer(request: Request) -> Response:
            if not self._rules:
                return await operation.answer(request)
            rule = self.take(operation.name, CALL_KINDS, await self._facts(request))
            if rule is None:
                return await operation.answer(request)
            return await self._strike(rule, operation, request)

        return answer

    async def _strike(self, rule: FaultRule, operation: Operation, request: Request) -> Response:
        if rule.kind == "status":
            raise rule.error()
        if rule.kind == "drop":
            return DroppedConnection()
        if rule.kind == "hang":
            await self.outlast(rule, _LONG_SECONDS)
            return DroppedConnection()
        if rule.kind == "delay":
            await self.outlast(rule, 1.0)
            return await operation.answer(request)
        response = await operation.answer(request)
        if rule.kind == "drop_after_effect":
            return DroppedConnection()
        if response.status_code < 400:
            raise rule.error()
        return response

    async def _facts(self, request: Request) -> JsonObject:
        facts: JsonObject = {
            "path": request.url.path,
            "query": dict(request.query_params),
            "client_id": getattr(request.state, "client_id", None),
        }
        wants_body = any("body" in rule.match for rule in self._rules.values())
        if wants_body and request.headers.get("content-type", "").startswith("application/json"):
            facts["body"] = await json_body(request)
        return facts


class DroppedConnection(Response):
    """No reply at all: the connection closes as if the machine behind it had died."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close the transport and wait until the server has noticed."""
        scope["extensions"]["workspace.abort"]["close"]()
        while (await receive())["type"] != "http.disconnect":
            pass


class FaultsRoom:
    """``/faults``: list, add, remove."""

    def __init__(self, book: FaultBook) -> None:
        self._book = book
        self._known: list[str] = []

    def know(self, names: Sequence[str]) -> None:
        """Learn the operation names, so that a rule with a misspelt name is refused."""
        self._known = [*names, RUN, MODEL_ANSWER, STATEMENT]

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        return [
            Operation("faults.list", "GET", "/faults", self.list, public=True),
            Operation("faults.add", "POST", "/faults", self.add, public=True),
            Operation("faults.clear", "DELETE", "/faults", self.clear, public=True),
            Operation("faults.remove", "DELETE", "/faults/{rule_id}", self.remove, public=True),
        ]

    async def list(self, request: Request) -> Response:
        """The rules in force with how often each was used, and every name a rule may address."""
        require_loopback(request)
        return json_response({"rules": [rule.model_dump() for rule in self._book.listed()], "apis": self._known})

    async def add(self, request: Request) -> Response:
        """Put one rule in force and answer with it, id included."""
        require_loopback(request)
        try:
            rule = FaultRule.model_validate(await json_body(request))
        except ValidationError as error:
            raise ApiError(422, "INVALID_PARAMETER_VALUE", str(error)) from error
        if not fnmatch.filter(self._known, rule.api):
            raise ApiError(422, "INVALID_PARAMETER_VALUE", f"no call is named {rule.api!r}; GET /faults lists them")
        self._book.add(rule)
        return json_response(rule.model_dump(), 201)

    async def clear(self, request: Request) -> Response:
        """Take every rule out."""
        require_loopback(request)
        self._book.clear()
        return Response(status_code=204)

    async def remove(self, request: Request) -> Response:
        """Take one rule out."""
        require_loopback(request)
        if not self._book.remove(request.path_params["rule_id"]):
            raise ApiError(404, "RESOURCE_DOES_NOT_EXIST", "no such rule")
        return Response(status_code=204)


def require_loopback(request: Request) -> None:
    """Refuse callers from other machines: the admin API has no password."""
    host = request.client.host if request.client else ""
    if host not in {"127.0.0.1", "::1"}:
        raise ApiError(403, "PERMISSION_DENIED", "the fault API answers on this machine only")


def _within(wanted: object, found: object) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and _within(value, found[key]) for key, value in wanted.items()
        )
    return wanted == found
