"""Settings of the sweeper, `LOCKKEEPER_SWEEPER_*`. Durations are seconds."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SweeperSettings(BaseSettings):
    """How often and how much at a time."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_SWEEPER_", frozen=True)

    poll_seconds: float = Field(default=3, gt=0, description="between sweeps over expired leases")
    batch: int = Field(default=50, ge=1, le=1000, description="overdue attempts looked at in one sweep")
    threads: int = Field(default=8, ge=1, le=64, description="questions to the Jobs API at one time")
    duty_seconds: float = Field(default=15, ge=1, description="how long a silent sweeper keeps its duty")
    forget_seconds: float = Field(default=60, gt=0, description="between removals of what nobody asks for again")
    keep_days: int | None = Field(
        default=None, ge=62, description="finished tasks are removed after so many days; unset keeps them for ever"
    )
    remove_seconds: float = Field(default=3600, gt=0, description="between two walks over what is kept no longer")
    gauges_seconds: float = Field(default=5, gt=0, description="between readings of the table-derived metrics")
    database_gauges_seconds: float = Field(default=30, gt=0, description="between readings of the database's own state")
    result_seconds: float = Field(default=30, ge=1, description="for the receiver to settle a result that was found")
    doubt_seconds: float = Field(default=30, ge=1, description="lease while the runner cannot be asked")
    retry_seconds: int = Field(default=5, ge=1, description="the SDK's own retries inside one call")
    http_seconds: int = Field(default=10, ge=1, description="one HTTP request of the SDK")
