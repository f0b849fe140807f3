"""Settings of the callback receiver: `LOCKKEEPER_CALLBACK_RECEIVER_*`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MIN_SECRET_BYTES = 16


class CallbackReceiverSettings(BaseSettings):
    """Keys, limits and the size of a round. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_CALLBACK_RECEIVER_", frozen=True)

    keys: dict[str, SecretStr] = Field(
        min_length=1, max_length=4, description="JSON: key id to secret; a second key lets agents change over"
    )
    max_body_bytes: int = Field(default=1_048_576, ge=1_024, le=67_108_864)
    max_held_bytes: int = Field(default=134_217_728, ge=1_048_576, description="all bodies in this process together")
    body_seconds: float = Field(default=15, gt=0, description="how long a body may take to arrive")
    window_seconds: float = Field(default=300, gt=0, description="how far a timestamp may be from the database's clock")
    scoped_only: bool = Field(
        default=False, description="refuse signatures that do not cover the attempt (v1), once every agent sends v2"
    )
    refusals_per_minute: int = Field(
        default=300, ge=1, description="unsigned callbacks by one source; beyond them it is answered 429"
    )
    proxies: list[str] = Field(
        default=["127.0.0.0/8", "::1/128"], description="networks whose X-Forwarded-For names the source"
    )
    token_jwks_url: str = Field(default="", description="keys of the platform; its OAuth tokens count then too")
    token_issuer: str = ""
    token_audience: str = ""
    token_subjects: list[str] = Field(default_factory=list, description="the agents' service principals")
    batch_size: int = Field(default=200, ge=1, le=2_000, description="reports settled in one transaction")
    gather_seconds: float = Field(
        default=0.005,
        ge=0,
        le=1,
        description="how long a report may wait for company while another round is on its way",
    )
    rounds_at_once: int = Field(default=2, ge=1, le=16)
    settle_seconds: float = Field(default=10, gt=0, description="a report that is not settled by then is answered 503")
    max_waiting: int = Field(default=5_000, ge=1, description="reports held before new ones are answered 503")
    clock_seconds: float = Field(default=30, gt=0, description="how often the database's clock is read")
    gather_poll_seconds: float = Field(default=2, gt=0, description="between looks at parents that wait")
    recovered_poll_seconds: float = Field(default=5, gt=0)

    @model_validator(mode="after")
    def _secrets_are_long(self) -> Self:
        if any(len(secret.get_secret_value().encode()) < MIN_SECRET_BYTES for secret in self.keys.values()):
            raise ValueError(f"every secret must have at least {MIN_SECRET_BYTES} bytes")
        if self.token_jwks_url and not (self.token_issuer and self.token_audience and self.token_subjects):
            raise ValueError("token_jwks_url needs token_issuer, token_audience and token_subjects")
        if self.max_held_bytes < self.max_body_bytes:
            raise ValueError("max_held_bytes must hold at least one body of max_body_bytes")
        return self
