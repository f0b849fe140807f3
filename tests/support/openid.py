"""A small OpenID provider that speaks the real protocol over the wire: discovery, code with PKCE, tokens, keys."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from typing import Any
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from shared.runtime.http import HttpServer

CLIENT = ("lockkeeper", "its-secret")


class OpenIdProvider:
    """Signs everybody in as `person`; `claims` changes what the next token says."""

    def __init__(self) -> None:
        self.person: dict[str, Any] = {"sub": "u-1", "email": "ada@example.com", "groups": ["underwriters"]}
        self.claims: dict[str, Any] = {}
        self.key = self._fresh_key()
        self.signs_with: ECKey | None = None
        self._codes: dict[str, dict[str, str]] = {}
        self._server = HttpServer(
            Starlette(routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]), "127.0.0.1", 0, grace_seconds=1,
        )  # fmt: skip

    async def open(self) -> None:
        await self._server.open()

    async def close(self) -> None:
        await self._server.close()

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def rotate(self) -> None:
        """Another key from now on; the old one is not published any more."""
        self.key = self._fresh_key()

    def token(self, **claims: Any) -> str:
        """A signed token for anybody."""
        now = int(time.time())
        content = {"iss": self.issuer, "aud": CLIENT[0], "iat": now, "exp": now + 300, **self.person, **claims}
        key = self.signs_with or self.key
        return jwt.encode({"alg": "ES256", "kid": key.kid}, content, key)

    @staticmethod
    def _fresh_key() -> ECKey:
        return ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256"}, auto_kid=True)

    async def _discovery(self, _: Request) -> Response:
        return JSONResponse({
            "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys",
        })  # fmt: skip

    async def _keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if asked.get("client_id") != CLIENT[0] or asked.get("code_challenge_method") != "S256":
            return Response(status_code=400)
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 302)

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        asked = self._codes.pop(str(form.get("code")), None)
        expected = "Basic " + base64.b64encode(":".join(CLIENT).encode()).decode()
        challenge = hashlib.sha256(str(form.get("code_verifier")).encode()).digest()
        if (
            asked is None
            or request.headers.get("authorization") != expected
            or base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != asked["code_challenge"]
            or form.get("redirect_uri") != asked["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        token = self.token(**{"nonce": asked["nonce"], **self.claims})
        return JSONResponse({"access_token": "none", "token_type": "Bearer", "id_token": token})
