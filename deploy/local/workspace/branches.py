"""Doubles Lakebase branching: branches of a project and their endpoints, by name.

It keeps their records. The data of a branch is where the endpoint's host leads, so one that is to be entered
needs a copy of the database there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from deploy.local.workspace.operation import ApiError, Operation, invalid_parameter, json_body, json_response, not_found
from deploy.local.workspace.settings import WorkspaceSettings

_ID = re.compile(r"[a-z][a-z0-9-]{0,62}")
_ROOT = "/api/2.0/postgres/projects/{project}"


class BranchesRoom:
    """`/api/2.0/postgres/projects/…/branches` and the endpoints below them; forgotten at the end."""

    def __init__(self, *, settings: WorkspaceSettings) -> None:
        self._host = settings.database_dns
        self._known: dict[str, dict[str, Any]] = {}
        self._done: dict[str, dict[str, Any]] = {}

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        branch = _ROOT + "/branches/{branch}"
        return [
            Operation("postgres.create_branch", "POST", _ROOT + "/branches", self.create_branch),
            Operation("postgres.get_branch", "GET", branch, self.get_branch),
            Operation("postgres.delete_branch", "DELETE", branch, self.delete_branch),
            Operation("postgres.create_endpoint", "POST", branch + "/endpoints", self.create_endpoint),
            Operation("postgres.get_operation", "GET", "/api/2.0/postgres/operations/{operation}", self.operation),
        ]

    async def create_branch(self, request: Request) -> Response:
        """A copy of another branch, which ends by itself."""
        body, name = await json_body(request), request.query_params.get("branch_id", "")
        if not _ID.fullmatch(name):
            raise invalid_parameter("branch_id must be lower case letters, digits and hyphens")
        spec = body.get("spec") or {}
        if not (spec.get("ttl") or spec.get("expire_time") or spec.get("no_expiry")):
            raise invalid_parameter("spec needs one of ttl, expire_time, no_expiry")
        path = f"projects/{request.path_params['project']}/branches/{name}"
        if path in self._known:
            raise ApiError(409, "ALREADY_EXISTS", f"{path} exists")
        self._known[path] = {"name": path, "spec": spec, "status": {"current_state": "READY", "branch_id": name}}
        return self._finished(self._known[path])

    async def get_branch(self, request: Request) -> Response:
        """What is known of a branch."""
        return json_response(self._branch(request))

    async def delete_branch(self, request: Request) -> Response:
        """Forget a branch and its endpoints."""
        path = self._branch(request)["name"]
        self._known = {name: each for name, each in self._known.items() if name != path}
        return self._finished({})

    async def create_endpoint(self, request: Request) -> Response:
        """The compute of a branch; it is where the database is."""
        path, body = self._branch(request)["name"], await json_body(request)
        name = request.query_params.get("endpoint_id", "")
        if not _ID.fullmatch(name) or not (body.get("spec") or {}).get("endpoint_type"):
            raise invalid_parameter("endpoint_id and spec.endpoint_type are required")
        return self._finished({
            "name": f"{path}/endpoints/{name}", "parent": path, "spec": body["spec"],
            "status": {"current_state": "ACTIVE", "hosts": {"host": self._host}},
        })  # fmt: skip

    async def operation(self, request: Request) -> Response:
        """How a long operation stands: done, as all of ours are at once."""
        name = f"operations/{request.path_params['operation']}"
        if name not in self._done:
            raise not_found(f"no operation is named {name!r}")
        return json_response(self._done[name])

    def _branch(self, request: Request) -> dict[str, Any]:
        path = f"projects/{request.path_params['project']}/branches/{request.path_params['branch']}"
        if path not in self._known:
            raise not_found(f"no branch is named {path!r}")
        return self._known[path]

    def _finished(self, answer: dict[str, Any]) -> Response:
        name = f"operations/{uuid.uuid4()}"
        self._done[name] = {"name": name, "done": True, "response": answer}
        return json_response({"name": name, "done": False})
