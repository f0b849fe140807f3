"""Signed tokens of others: their keys are fetched from a JWKS address, kept, and fetched again for an unknown key."""

from __future__ import annotations

import time
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from shared.contract.errors import RejectedError, TransientError

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
_KEEP_SECONDS = 3600.0
_AGAIN_SECONDS = 30.0
_LEEWAY_SECONDS = 60
HTTP_SECONDS = 10.0


class SignedTokens:
    """Judges JSON web tokens of one issuer by its published keys."""

    def __init__(self, jwks_url: str, *, issuer: str, audience: str) -> None:
        self._url = jwks_url
        self._claims = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
        )
        self._keys: KeySet | None = None
        self._fetched_at = 0.0

    async def claims(self, token: str) -> dict[str, Any]:
        """The claims of a valid token. Raises RejectedError for any other, TransientError without the keys."""
        keys = await self._known_keys(fresh=False)
        try:
            decoded = jwt.decode(token, keys, algorithms=_ALGORITHMS)
        except (JoseError, ValueError):
            # Signed with a key that we do not know, perhaps: the issuer may have changed its keys.
            decoded = await self._decoded_anew(token)
        try:
            self._claims.validate(decoded.claims)
        except JoseError as error:
            raise RejectedError(f"the token does not fit: {error}", reason="bad_token") from error
        return dict(decoded.claims)

    async def _decoded_anew(self, token: str) -> jwt.Token:
        keys = await self._known_keys(fresh=True)
        try:
            return jwt.decode(token, keys, algorithms=_ALGORITHMS)
        except (JoseError, ValueError) as error:
            raise RejectedError("the token is not signed by its issuer", reason="bad_token") from error

    async def _known_keys(self, *, fresh: bool) -> KeySet:
        age = time.monotonic() - self._fetched_at
        if self._keys is None or age > (_AGAIN_SECONDS if fresh else _KEEP_SECONDS):
            self._fetched_at = time.monotonic()
            try:
                async with httpx.AsyncClient(timeout=HTTP_SECONDS) as http:
                    answer = await http.get(self._url)
                answer.raise_for_status()
                self._keys = KeySet.import_key_set(answer.json())
            except (httpx.HTTPError, JoseError, ValueError) as error:
                if self._keys is None:
                    raise TransientError("the issuer's keys cannot be had", reason="keys_unavailable") from error
        return self._keys
