"""Settings of the underwriting worker, `LOCKKEEPER_UNDERWRITING_WORKER_*`. Durations are seconds.

Where Temporal is stands in the standard `TEMPORAL_*` settings, where the model is in those that agents use too.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.contract.underwriting import TASK_QUEUE


class WorkerSettings(BaseSettings):
    """How much one worker does at a time, and where it finds what."""

    model_config = SettingsConfigDict(
        env_prefix="LOCKKEEPER_UNDERWRITING_WORKER_", frozen=True, populate_by_name=True
    )  # fmt: skip

    task_queue: str = Field(default=TASK_QUEUE, min_length=1)
    workflow_tasks: int = Field(default=20, ge=2, le=1000, description="workflow tasks at one time")
    activities: int = Field(
        default=24,
        ge=1,
        le=1000,
        description="activities at one time; more than the processors bear only makes each late",
    )
    cached_workflows: int = Field(default=500, ge=0)
    sticky_seconds: float = Field(
        default=2, gt=0, description="after a crash the next step waits this long for the dead worker, not 10 s"
    )
    worker_versioning: bool = Field(
        default=False,
        description="Temporal's Worker Versioning: work is given to the deployment's current version only",
    )
    build_id: str = Field(default="", max_length=100, description="this version's name; empty names the code itself")
    search_attributes: bool = Field(default=True, description="add ours to the namespace when they are missing")
    payload_keys: dict[str, SecretStr] = Field(
        default_factory=dict, description="name to base64 AES-256 key; the first encrypts; none leaves payloads plain"
    )
    policy_fallback: Literal["fail_closed", "fixture_fallback"] = Field(
        default="fail_closed", description="what a missing policy row means"
    )
    policy_stale_seconds: float = Field(default=86_400, gt=0, description="an older sync is marked in the record")
    evidence_url: str = Field(default="", description="where credit and income files are; empty takes the samples")
    evidence_seconds: float = Field(default=10, gt=0, description="one request for a file")
    model_seconds: float = Field(default=35, gt=0, description="one model call")
    largest_result_bytes: int = Field(default=4 * 2**20, ge=1024, description="of one tool")
    largest_answer_bytes: int = Field(default=2**20, ge=1024, description="of the model")

    workspace_host: str = Field(default="", validation_alias=AliasChoices("DATABRICKS_HOST"))
    model_url: str = Field(default="", validation_alias=AliasChoices("LOCKKEEPER_MODEL_URL"))
    model_key: SecretStr = Field(default=SecretStr(""), validation_alias=AliasChoices("LOCKKEEPER_MODEL_KEY"))
    tracking_uri: str = Field(default="", validation_alias=AliasChoices("MLFLOW_TRACKING_URI"))
    experiment: str = Field(default="lockkeeper", validation_alias=AliasChoices("LOCKKEEPER_EXPERIMENT"))

    @property
    def model_base_url(self) -> str:
        """The address that the OpenAI client is given."""
        return self.model_url or f"{self.workspace_host.rstrip('/')}/serving-endpoints"

    def keys(self) -> dict[str, str]:
        """Payload keys as the codec takes them."""
        return {name: key.get_secret_value() for name, key in self.payload_keys.items()}

    @model_validator(mode="after")
    def _has_a_model(self) -> WorkerSettings:
        if not self.model_url and not self.workspace_host:
            raise ValueError("set LOCKKEEPER_MODEL_URL or DATABRICKS_HOST")
        return self
