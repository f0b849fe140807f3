"""Doubles the workspace's OAuth: ``/.well-known/databricks-config`` and ``/oidc`` (client credentials).

An access token is a signed text that names its service principal; it survives a restart of the double.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from deploy.local.workspace.operation import ApiError, Operation, json_response
from deploy.local.workspace.signing import Signer

_ACCESS = "access"


class OAuthRoom:
    """Discovery documents, tokens, and the check of the bearer token on every other call."""

    def __init__(
        self,
        *,
        secrets: Mapping[str, str],
        signer: Signer,
        token_seconds: int,
        workspace_id: str,
        account_id: str,
        cloud: str,
    ) -> None:
        self._secrets = secrets
        self._signer = signer
        self._token_seconds = token_seconds
        self._identity = {"workspace_id": workspace_id, "account_id": account_id, "cloud": cloud.lower()}

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        discovery = "/oidc/.well-known/oauth-authorization-server"
        return [
            Operation("oauth.config", "GET", "/.well-known/databricks-config", self.config, public=True),
            Operation("oauth.discovery", "GET", discovery, self.discovery, public=True),
            Operation("oauth.token", "POST", "/oidc/v1/token", self.token, public=True),
        ]

    def principal(self, request: Request) -> str:
        """The client id behind the bearer token, or 401 in the form the SDK reads."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise ApiError(401, "UNAUTHENTICATED", "Request is missing a bearer token.")
        claims = self._signer.open(_ACCESS, token.strip())
        if claims is None or claims["sub"] not in self._secrets:
            raise ApiError(401, "UNAUTHENTICATED", "Token is invalid or has expired.")
        return str(claims["sub"])

    async def config(self, request: Request) -> Response:
        """What the SDK asks first: where OAuth lives and which workspace this is."""
        return json_response({"oidc_endpoint": f"{_origin(request)}/oidc", **self._identity})

    async def discovery(self, request: Request) -> Response:
        """The OAuth server's metadata."""
        base = f"{_origin(request)}/oidc"
        return json_response(
            {
                "issuer": base,
                "authorization_endpoint": f"{base}/v1/authorize",
                "token_endpoint": f"{base}/v1/token",
                "grant_types_supported": ["client_credentials"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            }
        )

    async def token(self, request: Request) -> Response:
        """Exchange client credentials (HTTP Basic or form) for an access token."""
        async with request.form() as form:
            grant = str(form.get("grant_type", ""))
            posted = (str(form.get("client_id", "")), str(form.get("client_secret", "")))
        client_id, client_secret = _basic(request) or posted
        if grant != "client_credentials":
            return _refused(400, "unsupported_grant_type", f"grant_type {grant!r} is not supported")
        expected = self._secrets.get(client_id, "")
        if not expected or not hmac.compare_digest(expected.encode(), client_secret.encode()):
            return _refused(401, "invalid_client", "Client authentication failed")
        token = self._signer.seal(_ACCESS, {"sub": client_id, "scope": "all-apis"}, self._token_seconds)
        return json_response(
            {
                "access_token": token,
                "token_type": "Bearer",
                "scope": "all-apis",
                "expires_in": self._token_seconds,
            }
        )


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _refused(status: int, error: str, description: str) -> Response:
    return json_response({"error": error, "error_description": description}, status)


def _basic(request: Request) -> tuple[str, str] | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        client_id, _, secret = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return client_id, secret
