"""What routes take from a request besides its body, and the form in which they answer."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import Depends, Query, Request
from starlette.responses import Response

from services.console.messages.answers import Problem
from shared.contract.task_filter import TaskFilter
from shared.identity.people import person_of

API = "/api/v1"

PROBLEMS: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "the state or another's change forbids it"},
    422: {"model": Problem, "description": "not valid; `errors` says where"},
    503: {"model": Problem, "description": "not available now; see Retry-After"},
}


class Json(Response):
    """An answer that is plain JSON already."""

    media_type = "application/json"

    def __init__(self, content: object, status_code: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(orjson.dumps(content, default=_plain), status_code, headers)


def _plain(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def actor(request: Request) -> str:
    """The name of the person whom the guard let in."""
    return person_of(request).name


def task_filter(  # the parameters are declared for the OpenAPI document; they are read from the query itself
    request: Request,
    *,
    status: Annotated[list[str] | None, Query(description="one or more statuses, repeated or with commas")] = None,
    agent: Annotated[list[str] | None, Query(description="one or more agents")] = None,
    customer: Annotated[list[str] | None, Query(description="one or more customers")] = None,
    from_: Annotated[str | None, Query(alias="from", description="created at or after this instant")] = None,
    to: Annotated[str | None, Query(description="created before this instant")] = None,
    text: Annotated[str | None, Query(description="part of a document's name, of a customer or of an id")] = None,
    label: Annotated[list[str] | None, Query(description="`name` or `name=value`")] = None,
) -> TaskFilter:
    """The tasks that the query means."""
    del status, agent, customer, from_, to, text, label
    return TaskFilter.parse(request.query_params.multi_items())


Actor = Annotated[str, Depends(actor)]
Filter = Annotated[TaskFilter, Depends(task_filter)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=200)]
Limit = Annotated[int, Query(ge=1, le=500)]
