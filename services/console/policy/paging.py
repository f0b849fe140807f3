"""Cursors of lists: where the next page begins, opaque to clients."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from uuid import UUID

from shared.contract.errors import RejectedError


def encode_cursor(created_at: datetime, row_id: UUID) -> str:
    """The cursor after this row."""
    return base64.urlsafe_b64encode(f"{created_at.isoformat()} {row_id}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> tuple[datetime | None, UUID | None]:
    """The row that a cursor stands after. Raises RejectedError for one that we did not make."""
    if not cursor:
        return None, None
    try:
        created_at, _, row_id = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(" ")
        return _aware(datetime.fromisoformat(created_at)), UUID(row_id)
    except (ValueError, binascii.Error):
        raise RejectedError("cursor: is not one of ours; begin without it", reason="bad_cursor") from None


def _aware(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError("without a zone")
    return instant
