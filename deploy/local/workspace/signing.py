"""Tokens that prove themselves: access tokens and pre-signed addresses in the shape of a JWT.

The key lives in the data directory, so that what was handed out stays valid when the double restarts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path

import orjson

from deploy.local.workspace.operation import JsonObject

_HEADER = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=").decode()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Signer:
    """Seals claims and opens them again while they are valid."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def from_file(cls, path: Path) -> Signer:
        """Use the key in ``path``, made on first use and readable by its owner only."""
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
        return cls(path.read_bytes())

    def seal(self, kind: str, claims: JsonObject, seconds: float) -> str:
        """A token of this kind that carries the claims and ends after ``seconds``."""
        payload = {**claims, "knd": kind, "exp": time.time() + seconds, "jti": secrets.token_hex(8)}
        body = f"{_HEADER}.{_encode(orjson.dumps(payload))}"
        return f"{body}.{self._signature(body)}"

    def open(self, kind: str, token: str) -> JsonObject | None:
        """The claims of a genuine token of this kind that has not ended; None for any other text."""
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return None
        claims: JsonObject = orjson.loads(_decode(body.partition(".")[2]))
        if claims.get("knd") != kind or claims["exp"] <= time.time():
            return None
        return claims

    def _signature(self, body: str) -> str:
        return _encode(hmac.digest(self._key, body.encode(errors="replace"), hashlib.sha256))
