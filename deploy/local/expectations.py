"""Which end a document should have, so that the demo can say whether it went right.

The documents of our own generator bring their expectation along. For any other folder each file is
looked at with the PDF library alone: what holds text must be completed, what is locked must be
failed for that reason, what is no PDF must be refused, and in between a completed task or a failure
for a lasting reason are both right.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pypdfium2

HEADER_WITHIN_BYTES = 1024
READABLE_CHARACTERS = 15
"""Fewer on all pages together are a stamp or noise, not a text to hold the agent to."""
PASSING_REASONS = frozenset(
    {"agent_error", "interrupted", "lease_exhausted", "model_throttled", "model_unavailable", "workspace_unavailable"}
)
"""Failures of the moment: a task that ends with one of these has not been judged by its document."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The ends that are right, and the reason that a failure must then have; empty for any lasting one."""

    ends: frozenset[str]
    reason: str = ""

    def violated_by(self, end: str, reason: str | None, attempts: int) -> str | None:
        """Why this end is not right; None when it is."""
        if end not in self.ends:
            told = f" ({reason})" if reason else ""
            return f"ended {end}{told}, should be {' or '.join(sorted(self.ends))}"
        if end == "completed":
            return None
        if not reason:
            return f"{end} without a reason"
        if reason in PASSING_REASONS:
            return f"{end} for a passing reason: {reason}"
        if self.reason and reason != self.reason:
            return f"{end} for {reason}, should be {self.reason}"
        return f"tried {attempts} times for a reason that lasts: {reason}" if attempts > 1 else None


COMPLETED = Expectation(frozenset({"completed"}))
REFUSED = Expectation(frozenset({"refused"}))
LOCKED = Expectation(frozenset({"failed"}), "password_required")
DOUBTFUL = Expectation(frozenset({"completed", "failed"}))


def expectation_of(file: Path) -> Expectation:
    """What should become of a file that nobody described."""
    with file.open("rb") as stream:
        if b"%PDF-" not in stream.read(HEADER_WITHIN_BYTES):
            return REFUSED
    try:
        document = pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as error:
        return LOCKED if "password" in str(error).lower() else DOUBTFUL
    try:
        characters = sum(document[number].get_textpage().count_chars() for number in range(len(document)))
    except pypdfium2.PdfiumError:
        return DOUBTFUL
    finally:
        document.close()
    return COMPLETED if characters >= READABLE_CHARACTERS else DOUBTFUL


def from_description(described: dict[str, Any]) -> Expectation:
    """The expectation that a generated document brought along."""
    return Expectation(frozenset({described["end"]}), described.get("reason", ""))
