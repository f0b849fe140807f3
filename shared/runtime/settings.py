"""Typed settings from the environment.

`LOCKKEEPER_*` is what all services share, `LOCKKEEPER_<SERVICE>_*` one service's own. A name that
nobody knows refuses the start, because a mistyped setting that is silently ignored costs more than a failed start.
"""

from __future__ import annotations

import difflib
import os
import socket
from typing import TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.contract.errors import MisconfiguredError
from shared.contract.ownership import ROLES

Own = TypeVar("Own", bound=BaseSettings)

FOREIGN_PREFIXES = (
    "AGENT_",
    "CALLBACK_",
    "MODEL",
    "EXPERIMENT",
    "LOCAL_",
    "WORKSPACE_",
    "URL",
    "IDENTITY_",
    "TOKEN",
    "DEPLOYMENT",
    "TEST_",
    "SAMPLES",
)
"""Names that belong to agents, the command line, the local stack and the tests."""


class RuntimeSettings(BaseSettings):
    """What every service is told. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_", frozen=True)

    database_url: str = Field(description="postgresql:// address; the user is the service's own role")
    database_instance: str | None = Field(
        default=None, description="Lakebase instance or endpoint whose rotating credential is the password"
    )
    database_connections: int = Field(default=5, ge=1, le=100)
    database_connection_seconds: float = Field(
        default=43_200, ge=10, le=259_200, description="no connection is kept longer; the platform cuts at three days"
    )
    replica: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", min_length=1, max_length=100)
    ops_host: str = "127.0.0.1"
    ops_port: int = Field(default=0, ge=0, le=65535, description="/livez, /readyz and /metrics; 0 takes a free one")
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535, description="where an HTTP service listens")
    grace_seconds: float = Field(default=20, gt=0, le=600, description="from SIGTERM to the end of the drain")
    failure_budget: int = Field(default=10, ge=1, description="failed rounds in a row before the process gives up")
    heartbeat_seconds: float = Field(default=6, gt=0)
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")

    @model_validator(mode="after")
    def _is_postgres(self) -> RuntimeSettings:
        if not self.database_url.startswith(("postgresql://", "postgres://")):
            raise ValueError("LOCKKEEPER_DATABASE_URL must be a postgresql:// address")
        return self


def read_settings(service: str, common: type[RuntimeSettings], own: type[Own]) -> tuple[RuntimeSettings, Own]:
    """The settings of a service from the environment: the shared ones and its own.

    Raises MisconfiguredError, in one line for a person, for a value that does not fit or a name that
    nobody knows.
    """
    classes: tuple[type[BaseSettings], ...] = (common, own)
    known = {name for cls in classes for name in _names(cls)}
    others = tuple(f"LOCKKEEPER_{name.upper()}_" for name in ROLES if name != service)
    for name in os.environ:
        if not name.startswith("LOCKKEEPER_") or name in known or name.startswith(others):
            continue
        if name.removeprefix("LOCKKEEPER_").startswith(FOREIGN_PREFIXES):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise MisconfiguredError(f"unknown setting {name}{hint}")
    try:
        return common(), own()
    except ValidationError as error:
        first = error.errors()[0]
        where = "_".join(str(part) for part in first["loc"]).upper()
        prefix = next(
            (str(cls.model_config.get("env_prefix", "")) for cls in classes if cls.__name__ == error.title), ""
        )
        raise MisconfiguredError(f"setting {prefix}{where}: {first['msg']}".rstrip(": ")) from error


def _names(cls: type[BaseSettings]) -> set[str]:
    prefix = str(cls.model_config.get("env_prefix", ""))
    return {f"{prefix}{field}".upper() for field in cls.model_fields}
