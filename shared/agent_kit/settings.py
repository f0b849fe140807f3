"""What an agent's process is told: from the environment only, one class, read once per run."""

from __future__ import annotations

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.contract.errors import MisconfiguredError


class AgentSettings(BaseSettings):
    """Addresses, keys and time limits of the kit. An agent's own settings are its own class."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_", extra="ignore", frozen=True)

    database_url: SecretStr = Field(description="Where agent_inputs and attempt_results are")
    database_instance: str = Field(default="", description="Lakebase instance or endpoint that mints the password")
    callback_url: str = Field(description="Front of the callback receiver, e.g. https://host/callbacks/v1")
    callback_key_id: str
    callback_key: SecretStr = Field(description="HMAC secret that belongs to the key id")
    callback_login: bool = Field(
        default=False, description="Show the workspace's OAuth token besides: the receiver is a Databricks App"
    )
    callback_deadline_seconds: float = Field(default=120, gt=0, description="How long a result is offered")
    agent_heartbeat_seconds: float = Field(default=10, gt=0, description="Longest silence between two heartbeats")
    agent_progress_seconds: float = Field(default=1, gt=0, description="Shortest time between two heartbeats")

    workspace_host: str = Field(default="", validation_alias=AliasChoices("DATABRICKS_HOST"))
    model_url: str = Field(default="", description="OpenAI base address; default: the workspace's serving endpoints")
    model: str = Field(default="rule-based-stand-in", description="Endpoint or model name")
    model_key: SecretStr = Field(default=SecretStr(""), description="Key of the endpoint; default: the OAuth token")
    model_seconds: float = Field(default=60, gt=0, description="Time limit of one model call, whatever it does")

    tracking_uri: str = Field(default="", validation_alias=AliasChoices("MLFLOW_TRACKING_URI"))
    experiment: str = Field(default="lockkeeper", description="MLflow experiment of the traces")
    agent_trace_wait_seconds: float = Field(default=5, ge=0, description="How long to wait for the tracking server")
    agent_trace_flush_seconds: float = Field(default=15, gt=0, description="How long the end of a trace may take")

    @property
    def model_base_url(self) -> str:
        """The address that the OpenAI client is given."""
        return self.model_url or f"{self.workspace_host.rstrip('/')}/serving-endpoints"


def load_settings() -> AgentSettings:
    """The settings of this run. Raises MisconfiguredError with one line that names what is missing."""
    try:
        return AgentSettings()
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise MisconfiguredError(f"the agent's settings cannot be used: {faults}") from None
