"""Settings of the console, `LOCKKEEPER_CONSOLE_*`. Sizes are bytes, durations seconds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class ConsoleSettings(BaseSettings):
    """Where documents go, how large things may be, and who is believed."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_CONSOLE_", frozen=True)

    volume: str = Field(
        default="/Volumes/main/lockkeeper/documents",
        pattern=r"^/Volumes(/[^/]+){3,}$",
        description="the Volume, or a directory in it, that documents are stored in",
    )
    max_document_bytes: int = Field(default=200 * 2**20, ge=1024, description="one PDF")
    max_upload_bytes: int = Field(default=4 * 2**30, ge=1024, description="one upload of many PDFs")
    max_upload_files: int = Field(default=1000, ge=1, le=10_000)
    max_body_bytes: int = Field(default=2**20, ge=1024, description="a JSON body")
    spool_dir: Path = Field(
        default_factory=lambda: Path(tempfile.gettempdir()), description="holds uploads while they are received"
    )
    duplicate_seconds: float = Field(
        default=600, ge=0, description="the same bytes and name by the same person within this time are one document"
    )
    upload_threads: int = Field(default=4, ge=1, le=64, description="transfers to the workspace at one time")
    transfer_seconds: int = Field(default=120, ge=5, description="silence of the workspace that ends one transfer")
    retry_seconds: int = Field(default=5, ge=1, description="the SDK's own retries inside one transfer")
    page_count_seconds: float = Field(default=5, gt=0, description="for counting the pages of one document")
    page_draw_seconds: float = Field(default=20, gt=0, description="for drawing one page of a document")
    tracking_uri: str = Field(
        default="",
        validation_alias=AliasChoices("MLFLOW_TRACKING_URI"),
        description="where an attempt's trace is shown; empty: traces are named without a link",
    )
    allowed_hosts: list[str] = Field(
        default_factory=list, description="Host names that are answered; empty answers any"
    )

    @model_validator(mode="after")
    def _fits(self) -> ConsoleSettings:
        if self.max_document_bytes > self.max_upload_bytes:
            raise ValueError("LOCKKEEPER_CONSOLE_MAX_DOCUMENT_BYTES is larger than one upload may be")
        return self
