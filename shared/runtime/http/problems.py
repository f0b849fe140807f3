"""Errors as people and programs read them (RFC 9457), whatever raised them; never a stack trace."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from shared.contract.errors import (
    ConflictError,
    LockkeeperError,
    MissingError,
    RejectedError,
    TransientError,
)
from shared.runtime.http import problem

log = structlog.get_logger()

RETRY_SECONDS = 2
_MOST_ERRORS = 20


class StateConflictError(ConflictError):
    """The state of a thing forbids what was asked; `state` is that state."""

    reason = "state_forbids"

    def __init__(self, message: str, *, state: Mapping[str, object]) -> None:
        super().__init__(message)
        self.state = dict(state)


def handle_problems(app: FastAPI) -> None:
    """Answer every error of this app as a problem."""
    app.add_exception_handler(LockkeeperError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unforeseen)


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, LockkeeperError)  # noqa: S101 - registered for it
    match error:
        case TransientError():
            wait = max(1, round(error.retry_after_seconds or RETRY_SECONDS))
            log.warning("request_postponed", reason=error.reason, error=error.message)
            # The vendor's words may hold addresses; they are for the log.
            return problem(
                503, "Not available now", "Something that this needs does not answer; try again in a moment.",
                headers={"Retry-After": str(wait)}, reason=error.reason,
            )  # fmt: skip
        case StateConflictError():
            return problem(409, "The state forbids it", error.message, reason=error.reason, state=error.state)
        case ConflictError():
            return problem(409, "Conflict", error.message, reason=error.reason)
        case MissingError():
            return problem(404, "Not found", error.message, reason=error.reason)
        case RejectedError(reason="not_multipart"):
            return problem(415, "Wrong kind of body", error.message, reason=error.reason)
        case RejectedError(reason="too_large"):
            return problem(413, "Too large", error.message, reason=error.reason)
        case RejectedError(reason="value_refused"):
            return problem(422, "Not valid", "A value cannot be stored.", reason=error.reason)
        case RejectedError():
            return problem(422, "Not valid", error.message, reason=error.reason)
        case _:
            return _unexplained(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    errors = [
        {"loc": [str(part) for part in each["loc"]], "msg": str(each["msg"]).removeprefix("Value error, ")}
        for each in error.errors()[:_MOST_ERRORS]
    ]
    return problem(422, "Not valid", "; ".join(_sentence(each) for each in errors), reason="not_valid", errors=errors)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    title = HTTPStatus(error.status_code).phrase
    detail = "" if error.detail == title else str(error.detail)
    return problem(error.status_code, title, detail, headers=dict(error.headers or {}))


async def _left(request: Request, _: Exception) -> Response:
    # Nobody reads this answer; it only keeps a closed browser tab from counting as a fault of ours.
    log.info("client_left", path=request.scope["path"])
    return problem(400, "The request broke off", reason="interrupted")


async def _unforeseen(_: Request, error: Exception) -> Response:
    return _unexplained(error)


def _unexplained(error: Exception) -> Response:
    reference = uuid.uuid4().hex[:12]
    log.error("request_failed", reference=reference, exc_info=error)
    return problem(
        500, "Something went wrong here", f"It is in the log under {reference}; the request may be tried again.",
        reason="internal", reference=reference,
    )  # fmt: skip


def _sentence(error: Mapping[str, object]) -> str:
    where = error["loc"]
    assert isinstance(where, list)  # noqa: S101 - made above
    name = ".".join(part for part in where if part not in {"body", "query", "path"})
    return f"{name}: {error['msg']}" if name else str(error["msg"])
