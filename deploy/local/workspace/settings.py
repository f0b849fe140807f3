"""Every knob of the workspace double, read from ``LOCKKEEPER_WORKSPACE_*``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_ENDPOINT = "rule-based-stand-in"


class ServingEndpoint(BaseModel):
    """One model serving endpoint: the rule-based stand-in, or a real OpenAI-compatible address behind it."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["stand_in", "proxy"] = "stand_in"
    url: str = Field(default="", description="Base address of a real endpoint, e.g. https://host/v1 (proxy only)")
    model: str = Field(default="", description="Model name sent to the real endpoint; empty keeps the caller's")
    api_key: SecretStr = Field(default=SecretStr(""), description="Bearer key for the real endpoint")
    seconds_per_1000_tokens: float = Field(default=0.0, ge=0, description="Artificial latency of the stand-in")
    cached_share: float = Field(default=0.0, ge=0, le=1, description="Share of prompt tokens reported as cached")
    context_tokens: int = Field(default=200_000, gt=0, description="Longest prompt the stand-in accepts")

    @model_validator(mode="after")
    def _a_proxy_needs_an_address(self) -> Self:
        if self.kind == "proxy" and not self.url:
            msg = "a serving endpoint of kind 'proxy' needs a url"
            raise ValueError(msg)
        return self


class WorkspaceSettings(BaseSettings):
    """Settings of the workspace double; unknown variables with its prefix refuse the start (see ``load``)."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_WORKSPACE_", extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8790, ge=0, le=65535, description="0 lets the system choose; the log line says which")
    data_dir: Path = Field(default=Path(".lockkeeper/workspace"), description="Runs, files, keys; survives restarts")
    code_dir: Path = Field(default_factory=Path.cwd, description="Where runs import agent code from")

    client_id: str = Field(default="lockkeeper", description="The first service principal")
    client_secret: SecretStr = SecretStr("lockkeeper-local")
    principals: dict[str, SecretStr] = Field(default_factory=dict, description="More service principals: id to secret")
    token_seconds: int = Field(default=3600, ge=1, description="Life of an OAuth access token")
    workspace_id: str = "4711000000000001"
    account_id: str = "00000000-0000-4000-8000-000000004711"

    database_admin_url: SecretStr = Field(default=SecretStr(""), description="Postgres login that may ALTER ROLE")
    database_token_seconds: int = Field(default=3600, ge=1, description="Life of a database login when none is asked")
    database_dns: str = Field(default="127.0.0.1", description="What GET /database/instances calls read_write_dns")

    processes: Annotated[int, Field(ge=1, le=64)] = Field(
        default_factory=lambda: max(1, os.cpu_count() or 1), description="Warm processes: runs that execute at once"
    )
    warm_up_delay_seconds: float = Field(default=2.0, ge=0, description="Idle time before the processes are started")
    runs_per_process: int = Field(default=500, ge=1, description="A process is replaced after this many runs")
    nice: int = Field(default=5, ge=0, le=19, description="How far runs stand behind the services for the processor")
    cancel_grace_seconds: float = Field(
        default=2.0, ge=0, description="From SIGTERM to SIGKILL when a run is cancelled"
    )
    run_start_seconds: float = Field(default=0.0, ge=0, description="How long a run stays PENDING: a cold start")
    run_entry_points: dict[str, str] = Field(
        default_factory=lambda: {"document-agent": "services.document_agent.__main__:main"},
        description="Wheel entry points: name to module:function; others are looked up in installed packages",
    )
    agent_environment: dict[str, str] = Field(default_factory=dict, description="What the code of a run sees")

    serving_endpoints: dict[str, ServingEndpoint] = Field(default_factory=lambda: {DEFAULT_ENDPOINT: ServingEndpoint()})

    billing_lag_seconds: float = Field(default=5.0, ge=0, description="From the end of a run to its usage row")
    dbu_per_hour: float = Field(default=4.0, gt=0, description="Serverless consumption of one run")
    cloud: Literal["AWS", "AZURE", "GCP"] = "AWS"

    def secrets(self) -> dict[str, str]:
        """Client id to client secret, of every service principal."""
        known = {self.client_id: self.client_secret, **self.principals}
        return {client_id: secret.get_secret_value() for client_id, secret in known.items()}

    @classmethod
    def load(cls) -> Self:
        """Read the environment; a variable with our prefix that no field knows is an error, not a surprise."""
        prefix = "LOCKKEEPER_WORKSPACE_"
        known = {prefix + name.upper() for name in cls.model_fields}
        unknown = sorted(name for name in os.environ if name.startswith(prefix) and name not in known)
        if unknown:
            msg = f"unknown settings: {', '.join(unknown)}"
            raise ValueError(msg)
        return cls()
