"""Decisions of the callback receiver that need nothing but their arguments."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from services.callback_receiver.messages import Kind, Verdict
from shared.contract.callback import Usage
from shared.contract.errors import WriteOutcome

_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_SECONDS = re.compile(r"[0-9]{1,11}", re.ASCII)

Key = TypeVar("Key", bound=Hashable)


def attempt_of(text: str) -> UUID | None:
    """The attempt that a path names; None for anything but the one usual spelling."""
    return UUID(text) if _CANONICAL.fullmatch(text) else None


def is_fresh(timestamp: str, now: float, window_seconds: float) -> bool:
    """Whether the sender's whole seconds since 1970 lie within the window around the database's clock."""
    return _SECONDS.fullmatch(timestamp) is not None and abs(int(timestamp) - now) <= window_seconds


class Sources:
    """Counts what was refused by source and minute; memory stays bounded however many sources there are."""

    _MOST = 10_000

    def __init__(self, per_minute: int, proxies: Iterable[str]) -> None:
        self._per_minute = per_minute
        self._proxies = [ipaddress.ip_network(each) for each in proxies]
        self._minute = 0
        self._refused: dict[str, int] = {}

    def source_of(self, peer: str, forwarded_for: str) -> str:
        """Who sends: the peer, or whom our own proxy says it is. Nobody else's word counts."""
        try:
            is_proxy = any(ipaddress.ip_address(peer) in network for network in self._proxies)
        except ValueError:
            is_proxy = False
        last = forwarded_for.rpartition(",")[2].strip()
        return last[:45] if is_proxy and last else peer

    def is_blocked(self, source: str, now: float) -> bool:
        """Whether this source was refused too often in this minute."""
        if int(now // 60) != self._minute:
            self._minute = int(now // 60)
            self._refused.clear()
        return self._refused.get(source, 0) >= self._per_minute

    def refuse(self, source: str) -> None:
        """Remember that it was refused."""
        if source in self._refused or len(self._refused) < self._MOST:
            self._refused[source] = self._refused.get(source, 0) + 1


def rate_tokens(usage: Sequence[Usage]) -> int | None:
    """Tokens that count towards the provider's rate; those read from a cache do not. None when nothing was said."""
    if not usage:
        return None
    return sum(each.input_tokens + each.output_tokens + each.cache_write_tokens for each in usage)


def first_of_each(keys: Iterable[Key]) -> list[bool]:
    """For each key in order, whether it is the first of its kind: one report per task is settled in a round."""
    seen: set[Key] = set()
    return [not (key in seen or seen.add(key)) for key in keys]  # type: ignore[func-returns-value]


def classify(kind: Kind, verdict: Verdict, outcome: str) -> WriteOutcome:
    """Which of the four results of a fenced write a report had."""
    match verdict:
        case Verdict.COMPLETE | Verdict.FAIL | Verdict.RETRY | Verdict.RECORD | Verdict.EXTEND:
            return WriteOutcome.APPLIED
        case Verdict.RESULT_MISSING | Verdict.MISSING:
            return WriteOutcome.MISSING
        case Verdict.NOTE | Verdict.SETTLED | Verdict.IGNORE:
            wanted = {Kind.RESULT: "completed", Kind.FAILURE: "failed", Kind.HEARTBEAT: "running"}[kind]
            return WriteOutcome.NO_OP if outcome == wanted else WriteOutcome.CONFLICT
