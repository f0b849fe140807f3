"""What a room offers: operations, each a named call of the doubled API, and the errors they answer with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response

Answer = Callable[[Request], Awaitable[Response]]
JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the API. Fault rules address it by ``name``; ``public`` ones need no bearer token."""

    name: str
    method: str
    path: str
    answer: Answer
    public: bool = False


class Room(Protocol):
    """One vendor API."""

    def operations(self) -> Sequence[Operation]:
        """The calls this room answers, most specific path first."""


class ApiError(Exception):
    """An error in the form the SDK reads: HTTP status, ``error_code`` and a message for people."""

    def __init__(self, status: int, error_code: str, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.message = message
        self.headers = headers or {}

    def response(self) -> Response:
        """The reply that carries this error."""
        return json_response({"error_code": self.error_code, "message": self.message}, self.status, self.headers)


def invalid_parameter(message: str) -> ApiError:
    """400 INVALID_PARAMETER_VALUE."""
    return ApiError(400, "INVALID_PARAMETER_VALUE", message)


def not_found(message: str) -> ApiError:
    """404 RESOURCE_DOES_NOT_EXIST."""
    return ApiError(404, "RESOURCE_DOES_NOT_EXIST", message)


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON reply."""
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


async def json_body(request: Request) -> JsonObject:
    """The JSON object in the request; an empty body is an empty object, anything else is 400."""
    raw = await request.body()
    if not raw.strip():
        return {}
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "MALFORMED_REQUEST", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "MALFORMED_REQUEST", "the body is not a JSON object")
    return body


def integer(value: object, name: str) -> int:
    """A number that may have travelled as text; 400 with its name when it is missing or no number."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise invalid_parameter(f"{name} is required and must be a number")
    try:
        return int(value)
    except ValueError as error:
        raise invalid_parameter(f"{name} must be a number, not {value!r}") from error
