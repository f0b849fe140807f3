"""Settings of the cost attributor: `LOCKKEEPER_COST_ATTRIBUTOR_*`, and the platform's own names beside them."""

from __future__ import annotations

from decimal import Decimal

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class CostAttributorSettings(BaseSettings):
    """Where usage is read and how often. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_COST_ATTRIBUTOR_", frozen=True)

    tracking_uri: str = Field(
        default="", validation_alias=AliasChoices("MLFLOW_TRACKING_URI"), description="empty: there are no traces"
    )
    experiments: list[str] = Field(default=["lockkeeper"], min_length=1, description="JSON list of experiment names")
    unknown_after_seconds: float = Field(
        default=900, gt=0, description="how long after its end an attempt's trace is waited for"
    )
    batch_size: int = Field(default=500, ge=1, le=5_000, description="attempts taken in one round")
    poll_seconds: float = Field(default=2, gt=0)
    start_seconds: float = Field(
        default=8, ge=0, description="before the first look at traces: the client's import must not slow a start"
    )
    warehouse_id: str | None = Field(default=None, description="default: DATABRICKS_WAREHOUSE_ID")
    workspace_id: str | None = Field(default=None, description="default: the workspace that the SDK is logged in to")
    billing_poll_seconds: float = Field(default=10, gt=0)
    statement_seconds: float = Field(default=240, gt=0, description="time limit of one statement on the warehouse")
    bill_final_after_seconds: float = Field(
        default=72 * 3600, gt=0, description="a bill that is read this long after the run's end is final"
    )
    bill_every_seconds: float = Field(
        default=0, ge=0, description="ask for the bill on a schedule; 0: only when a person asks"
    )
    budget_alert_shares: list[Decimal] = Field(
        default=[Decimal("0.8"), Decimal(1)], description="parts of a budget that are told when they are spent"
    )
    budget_poll_seconds: float = Field(default=15, gt=0)
    request_seconds: float = Field(default=1_800, gt=0, description="after which a request that cannot be met fails")
