"""How a task enters the queue: its estimate, its digest, and what makes its start time acceptable."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from shared.contract.errors import RejectedError
from shared.contract.text import clean_json

_BYTES_PER_PAGE = 60_000
"""A page of an ordinary PDF; only used while nobody has counted the pages."""

_FARTHEST = timedelta(days=3650)
_DEEPEST = 100


def estimated_tokens(pages: int | None, size: int | None, tokens_per_page: int) -> int | None:
    """Tokens that a document will take; None without a document: the agent's default holds then."""
    if pages is None and size is None:
        return None
    counted = pages if pages is not None else max(1, round((size or 0) / _BYTES_PER_PAGE))
    return max(1, counted) * tokens_per_page


def request_digest(body: dict[str, Any]) -> str:
    """A fingerprint of what was asked for, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def storable(value: dict[str, Any], field: str) -> dict[str, Any]:
    """The JSON object as Postgres can hold it. Raises RejectedError for one that is too deep or has huge numbers."""
    _check_depth(value, field, _DEEPEST)
    cleaned: dict[str, Any]
    cleaned, _ = clean_json(value)
    try:
        orjson.dumps(cleaned)
    except orjson.JSONEncodeError as error:
        raise RejectedError(f"{field}: cannot be stored ({error})", reason="bad_value") from error
    return cleaned


def acceptable_start(available_at: datetime | None, now: datetime) -> datetime | None:
    """The start time in UTC; the past means now. Raises RejectedError for one more than ten years away."""
    if available_at is None:
        return None
    if available_at > now + _FARTHEST:
        raise RejectedError("available_at: is more than ten years away", reason="bad_value")
    return None if available_at <= now else available_at.astimezone(UTC)


def _check_depth(value: object, field: str, left: int) -> None:
    if left == 0:
        raise RejectedError(f"{field}: is nested more than {_DEEPEST} levels deep", reason="bad_value")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        _check_depth(each, field, left - 1)
