"""Decisions of the API that need nothing but their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.contract.errors import RejectedError
from shared.contract.underwriting import Decision


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ends: the next one begins behind it."""

    at: datetime | None = None
    run: UUID | None = None

    def text(self) -> str:
        """As clients carry it."""
        return f"{'' if self.at is None else self.at.isoformat()}_{self.run}"

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """Raises RejectedError for what no page has given."""
        if not text:
            return cls()
        at, _, run = text.partition("_")
        try:
            # A "+" that nobody escaped arrives as a space.
            return cls(datetime.fromisoformat(at.replace(" ", "+")), UUID(run))
        except ValueError:
            raise RejectedError("cursor: not one of ours", reason="bad_cursor") from None


def differs(known: Mapping[str, Any], run: UUID, decision: Decision) -> bool:
    """Whether a decision that is sent under a known id is another one."""
    return (known["run_id"], known["review_id"], known["decision"], known["reviewer"], known["note"]) != (
        run, decision.review_id, decision.decision, decision.reviewer, decision.note,
    )  # fmt: skip
