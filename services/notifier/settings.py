"""Settings of the notifier, `LOCKKEEPER_NOTIFIER_*`. Durations are seconds."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class NotifierSettings(BaseSettings):
    """How often browsers hear something, and how many there may be."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_NOTIFIER_", frozen=True)

    max_clients: int = Field(default=5000, ge=1, description="open streams; more get 503 with Retry-After")
    gather_seconds: float = Field(default=0.25, gt=0, description="changes within this time travel together")
    summary_seconds: float = Field(default=1, gt=0, description="totals are sent at most this often")
    poll_seconds: float = Field(default=2, gt=0, description="between looks at the event log while notes do not arrive")
    live_poll_seconds: float = Field(default=10, gt=0, description="between looks while they do")
    heartbeat_seconds: float = Field(default=8, gt=0, description="between two signs of life on every stream")
    send_seconds: float = Field(default=20, gt=0, description="a browser that takes nothing for so long is let go")
    replay_events: int = Field(default=5000, ge=0, description="kept for browsers that come back")
    pending_events: int = Field(
        default=2000, ge=10, description="per browser; one that is further behind gets a snapshot"
    )
    snapshot_tasks: int = Field(default=50, ge=1, le=500)
