"""Signing in at an OpenID provider: authorization code with PKCE, an ID token judged by the provider's keys."""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx

from shared.contract.errors import RejectedError, TransientError
from shared.identity.jwks import HTTP_SECONDS, SignedTokens
from shared.identity.settings import IdentitySettings


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in under way, kept in an encrypted cookie of the browser that began it."""

    state: str
    nonce: str
    verifier: str
    next: str

    @classmethod
    def begin(cls, following: str) -> Attempt:
        """A fresh attempt that leads back to a page of ours."""
        is_ours = following.startswith("/") and not following.startswith(("//", "/\\"))
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, following if is_ours else "/")


class Provider:
    """One OpenID provider, found by its discovery document."""

    def __init__(self, settings: IdentitySettings) -> None:
        self._settings = settings
        self._found: dict[str, Any] | None = None
        self._tokens: SignedTokens | None = None

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends people back to."""
        return f"{self._settings.public_url.rstrip('/')}/auth/callback"

    async def address(self, attempt: Attempt) -> str:
        """Where a person signs in."""
        found = await self._discovered()
        challenge = hashlib.sha256(attempt.verifier.encode()).digest()
        query = {
            "response_type": "code", "client_id": self._settings.client_id, "redirect_uri": self.redirect_uri,
            "scope": self._settings.scopes, "state": attempt.state, "nonce": attempt.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }  # fmt: skip
        return f"{found['authorization_endpoint']}?{urlencode(query)}"

    async def claims(self, attempt: Attempt, code: str) -> dict[str, Any]:
        """Who signed in. Raises RejectedError when the provider says no, TransientError when it is away."""
        found = await self._discovered()
        secret = self._settings.client_secret.get_secret_value()
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self.redirect_uri,
            "client_id": self._settings.client_id, "code_verifier": attempt.verifier,
        }  # fmt: skip
        auth = httpx.BasicAuth(self._settings.client_id, secret) if secret else None
        try:
            async with httpx.AsyncClient(timeout=HTTP_SECONDS, auth=auth) as http:
                answer = await http.post(found["token_endpoint"], data=form)
        except httpx.HTTPError as error:
            raise TransientError("the provider does not answer", reason="provider_unavailable") from error
        if answer.is_error:
            raise RejectedError("the provider did not accept the sign-in", reason="sign_in_refused")
        assert self._tokens is not None  # noqa: S101 - made with the discovery
        claims = await self._tokens.claims(str(answer.json().get("id_token", "")))
        if not secrets.compare_digest(str(claims.get("nonce", "")), attempt.nonce):
            raise RejectedError("the token belongs to another sign-in", reason="sign_in_refused")
        return claims

    async def _discovered(self) -> dict[str, Any]:
        if self._found is None:
            issuer = self._settings.issuer.rstrip("/")
            try:
                async with httpx.AsyncClient(timeout=HTTP_SECONDS) as http:
                    answer = await http.get(f"{issuer}/.well-known/openid-configuration")
                answer.raise_for_status()
                found: dict[str, Any] = answer.json()
            except (httpx.HTTPError, ValueError) as error:
                raise TransientError("the provider cannot be found", reason="provider_unavailable") from error
            names = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
            if not all(isinstance(found.get(name), str) for name in names) or found["issuer"].rstrip("/") != issuer:
                raise RejectedError("what was found is not the provider that was named", reason="wrong_provider")
            self._tokens = SignedTokens(found["jwks_uri"], issuer=found["issuer"], audience=self._settings.client_id)
            self._found = found
        return self._found
