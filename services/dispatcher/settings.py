"""Settings of the dispatcher, `LOCKKEEPER_DISPATCHER_*`. Durations are seconds."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class DispatcherSettings(BaseSettings):
    """How much this replica takes at a time, and how long it may take to hand it on."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_DISPATCHER_", frozen=True)

    claim_batch: int = Field(default=100, ge=1, le=5000, description="tasks leased in one transaction")
    submit_threads: int = Field(default=8, ge=1, le=64, description="calls to the Jobs API at one time")
    submit_ahead: int = Field(default=2, ge=1, le=50, description="leased attempts per thread, waiting ones included")
    submit_lease_seconds: float = Field(default=60, ge=2, description="lease of an attempt until its run is known")
    retry_seconds: int = Field(default=10, ge=1, description="the SDK's own retries inside one call")
    http_seconds: int = Field(default=15, ge=1, description="one HTTP request of the SDK")
    poll_seconds: float = Field(default=2, gt=0, description="between claims that no note woke")
    take_over_poll_seconds: float = Field(
        default=15, gt=0, description="between looks for what silent dispatchers left"
    )
    cancel_poll_seconds: float = Field(default=5, gt=0, description="between questions about a run that must end")

    @model_validator(mode="after")
    def _deadline_within_lease(self) -> DispatcherSettings:
        if self.retry_seconds + self.http_seconds + 5 >= self.submit_lease_seconds:
            raise ValueError("retry_seconds + http_seconds + 5 must be less than submit_lease_seconds")
        return self
