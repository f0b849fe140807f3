"""Tokens of programs: `lk_<id>_<secret>`. The database keeps a digest, so a token is shown once and never again."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from uuid import UUID

from shared.contract.ids import uuid7
from shared.db.pool import Database
from shared.db.statements import load
from shared.identity.people import Person, Right

_SQL = load("shared.identity")
_FORM = re.compile(r"lk_(?P<id>[0-9a-f]{32})_(?P<secret>[A-Za-z0-9_-]{43})", re.ASCII)
_KEEP_SECONDS = 10.0
_MOST_KEPT = 1_000


def new_token() -> tuple[UUID, str, bytes]:
    """An id, the token to hand over, and the digest to keep."""
    token_id, secret = uuid7(), secrets.token_urlsafe(32)
    return token_id, f"lk_{token_id.hex}_{secret}", digest_of(secret)


def digest_of(secret: str) -> bytes:
    """What is kept of a secret; it is random and long, so that a slow hash would only slow us."""
    return hashlib.sha256(secret.encode()).digest()


class Tokens:
    """Judges tokens; what the database said counts for ten seconds, so a revoked one ends within them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[UUID, tuple[float, bytes, Person]] = {}

    async def person(self, token: str) -> Person | None:
        """Who holds this token; None for one that does not count."""
        match = _FORM.fullmatch(token)
        if match is None:
            return None
        token_id, digest = UUID(match["id"]), digest_of(match["secret"])
        kept = self._kept.get(token_id)
        if kept is None or time.monotonic() > kept[0]:
            row = await self._database.fetchrow(_SQL["read_token"].sql, token_id)
            if row is None:
                self._kept.pop(token_id, None)
                return None
            person = Person(f"token:{row['name']}", frozenset(map(Right, row["rights"])), "token")
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            kept = self._kept[token_id] = (time.monotonic() + _KEEP_SECONDS, bytes(row["digest"]), person)
        return kept[2] if hmac.compare_digest(kept[1], digest) else None
