"""Settings of the underwriting API, `LOCKKEEPER_UNDERWRITING_API_*`. Where Temporal is stands in `TEMPORAL_*`."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.contract.underwriting import TASK_QUEUE, Pace


class ApiSettings(BaseSettings):
    """Who is believed, how long a review may wait, how decisions are delivered. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_UNDERWRITING_API_", frozen=True)

    task_queue: str = Field(default=TASK_QUEUE, min_length=1)
    search_attributes: bool = Field(default=True, description="runs are searchable in Temporal by state and purpose")
    payload_keys: dict[str, SecretStr] = Field(
        default_factory=dict, description="name to base64 AES-256 key; the same as the worker's"
    )
    model: str = Field(default="rule-based-stand-in", min_length=1, description="asked when a request names none")
    remind_days: float = Field(default=3, gt=0)
    expire_days: float = Field(default=30, gt=0)
    answer_seconds: float = Field(
        default=5, gt=0, le=60, description="how long a caller waits for Temporal; then the answer is 202 received"
    )
    poll_seconds: float = Field(default=2, gt=0, description="between looks for what is not delivered yet")
    max_body_bytes: int = Field(default=65_536, ge=1024)

    @model_validator(mode="after")
    def _reminds_before_the_end(self) -> ApiSettings:
        if self.remind_days >= self.expire_days:
            raise ValueError("remind_days must be less than expire_days")
        return self

    def keys(self) -> dict[str, str]:
        """Payload keys as the codec takes them."""
        return {name: key.get_secret_value() for name, key in self.payload_keys.items()}

    def pace(self) -> Pace:
        """How long a run waits for people."""
        return Pace(remind_after=timedelta(days=self.remind_days), expire_after=timedelta(days=self.expire_days))
