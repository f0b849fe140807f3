"""Settings of identity, `LOCKKEEPER_IDENTITY_*`: the same for every service that people reach; durations in seconds."""

from __future__ import annotations

import ipaddress
import os
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.contract.errors import MisconfiguredError
from shared.identity.people import Role

PREFIX = "LOCKKEEPER_IDENTITY_"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class IdentitySettings(BaseSettings):
    """Who is believed, and what they are."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    mode: Literal["local", "open", "forwarded", "oidc"] = Field(
        default="local",
        description="local: everybody on this machine may do everything; open: the same, from anywhere; "
        "forwarded: a proxy says who it is; oidc: people sign in",
    )
    roles: dict[str, list[Role]] = Field(
        default_factory=dict, description="JSON: person, or group:name, to roles (viewer, operator, reviewer, admin)"
    )
    default_roles: list[Role] = Field(default=[Role.VIEWER], description="of people whom `roles` does not name")
    trusted_proxies: list[str] = Field(
        default_factory=list, description="networks whose X-Forwarded-User is believed, e.g. 10.0.0.0/8"
    )
    public_url: str = Field(default="", description="the address that browsers use; where the provider sends them back")
    issuer: str = Field(default="", description="the OpenID provider; its discovery document is below it")
    client_id: str = ""
    client_secret: SecretStr = SecretStr("")
    scopes: str = "openid profile email"
    session_keys: list[SecretStr] = Field(
        default_factory=list, description="Fernet keys; the first encrypts sessions, all open them"
    )
    session_seconds: int = Field(default=28_800, ge=60, description="after this people sign in again")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for network in self.trusted_proxies:
            ipaddress.ip_network(network)
        if self.mode == "forwarded" and not self.trusted_proxies:
            raise ValueError("forwarded needs TRUSTED_PROXIES: anybody could send the header")
        if self.mode == "oidc" and not (self.issuer and self.client_id and self.public_url and self.session_keys):
            raise ValueError("oidc needs ISSUER, CLIENT_ID, PUBLIC_URL and SESSION_KEYS")
        return self

    @classmethod
    def load(cls, host: str) -> Self:
        """The settings for a service that listens on `host`. Raises MisconfiguredError, in one line for a person."""
        known = {f"{PREFIX}{name}".upper() for name in cls.model_fields}
        for name in os.environ:
            if name.startswith(PREFIX) and name not in known:
                raise MisconfiguredError(f"unknown setting {name}")
        try:
            made = cls()
        except ValidationError as error:
            first = error.errors()[0]
            where = "_".join(str(part) for part in first["loc"]).upper()
            raise MisconfiguredError(f"setting {PREFIX}{where}: {first['msg']}") from error
        if made.mode == "local" and host not in _LOOPBACK_NAMES:
            raise MisconfiguredError(
                f"{PREFIX}MODE=local is for this machine only, and the service listens on {host}: "
                "choose forwarded or oidc (or open, where only trusted people reach it)"
            )
        return made
