"""What a browser keeps for us: encrypted, signed and ending by itself (Fernet), in cookies no script can read."""

from __future__ import annotations

import json
from http.cookies import CookieError, SimpleCookie
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from starlette.datastructures import Headers

from shared.contract.errors import MisconfiguredError
from shared.identity.settings import IdentitySettings

SIGN_IN_SECONDS = 600


class Cookies:
    """Reads and writes the two cookies: `session`, and `sign_in` while a sign-in is under way."""

    def __init__(self, settings: IdentitySettings) -> None:
        try:
            self._box = MultiFernet([Fernet(key.get_secret_value()) for key in settings.session_keys])
        except ValueError as error:
            raise MisconfiguredError(f"LOCKKEEPER_IDENTITY_SESSION_KEYS: {error}") from error
        self._is_secure = settings.public_url.startswith("https://")
        self._lives = {"session": settings.session_seconds, "sign_in": SIGN_IN_SECONDS}

    def read(self, headers: Headers, name: str) -> dict[str, Any] | None:
        """What the cookie holds; None without one, or with one that is forged or has ended."""
        jar: SimpleCookie = SimpleCookie()
        try:
            jar.load(headers.get("cookie", ""))
            sealed = jar[self._name(name)].value
            held: dict[str, Any] = json.loads(self._box.decrypt(sealed, ttl=self._lives[name]))
        except (KeyError, CookieError, InvalidToken, ValueError):
            return None
        return held if held.get("for") == name else None

    def written(self, name: str, content: dict[str, Any] | None) -> str:
        """A Set-Cookie header; without content the cookie is taken away."""
        value, life = "", 0
        if content is not None:
            value = self._box.encrypt(json.dumps({**content, "for": name}).encode()).decode()
            life = self._lives[name]
        secure = "; Secure" if self._is_secure else ""
        return f"{self._name(name)}={value}; Max-Age={life}; Path=/; HttpOnly; SameSite=Lax{secure}"

    def _name(self, name: str) -> str:
        # A cookie of this prefix is taken by browsers only from this very host, over TLS.
        return f"__Host-lockkeeper_{name}" if self._is_secure else f"lockkeeper_{name}"
