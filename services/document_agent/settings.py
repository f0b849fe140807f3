"""The document agent's own knobs, `LOCKKEEPER_AGENT_*`. The addresses and keys belong to the kit."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.contract.errors import RejectedError


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """What reading one document may cost; sent to the child process with each document."""

    pages: int
    ocr_seconds_a_page: float
    table_seconds_a_page: float
    table_seconds: float
    cpu_seconds_a_page: float
    memory_bytes: int
    ocr_threads: int

    def as_message(self) -> dict[str, Any]:
        """The limits as JSON."""
        return asdict(self)


class DocumentAgentSettings(BaseSettings):
    """Limits of one document. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="LOCKKEEPER_AGENT_", extra="ignore", frozen=True)

    file_limit_bytes: int = Field(default=1 << 30, gt=0)
    page_limit: int = Field(default=10_000, gt=0, description="A longer document is refused: too_many_pages")
    open_seconds: float = Field(default=30, gt=0, description="Wall clock until the page count is known")
    page_seconds: float = Field(default=90, gt=0, description="Wall clock of one page; beyond: parse_timeout")
    document_seconds: float = Field(default=7_200, gt=0, description="Wall clock of all pages; beyond: parse_timeout")
    ocr_page_seconds: float = Field(default=45, gt=0, description="A page keeps what was recognised until then")
    ocr_threads: int = Field(default=0, ge=0, description="0 takes all cores, at most four")
    table_page_seconds: float = Field(default=10, gt=0)
    table_seconds: float = Field(default=120, gt=0, description="Time for the tables of one document")
    parser_memory_bytes: int = Field(default=3 << 30, gt=0, description="Resident memory of the child process")
    parser_documents: int = Field(default=200, gt=0, description="The child process is replaced after so many files")
    chunk_characters: int = Field(default=64_000, ge=1_000, description="Text in one model call, about four a token")
    model_calls: int = Field(default=60, gt=0, description="Most chunks of one document that the model reads")
    text_characters: int = Field(default=400_000, ge=0, description="How much of the text the result keeps")
    table_rows: int = Field(default=5_000, ge=0, description="How many table rows the result keeps")

    def reading_limits(self) -> ReadingLimits:
        """The part that the child process enforces itself."""
        return ReadingLimits(
            pages=self.page_limit,
            ocr_seconds_a_page=self.ocr_page_seconds,
            table_seconds_a_page=self.table_page_seconds,
            table_seconds=self.table_seconds,
            cpu_seconds_a_page=self.page_seconds * 4,
            memory_bytes=self.parser_memory_bytes,
            ocr_threads=self.ocr_threads or min(4, os.cpu_count() or 1),
        )


class DocumentAgentOptions(BaseModel):
    """What an operator may set per agent in `options`, beside `schema`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str | None = Field(default=None, description="Endpoint of this agent; default: the process' own")
    model_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Sent with each call; null leaves out temperature, max_tokens, response_format",
    )
    chunk_characters: int | None = Field(default=None, ge=1_000, description="Text in one model call")


def read_options(options: dict[str, Any]) -> DocumentAgentOptions:
    """The options of an agent. Raises RejectedError with what is wrong with them."""
    try:
        return DocumentAgentOptions.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RejectedError(f"the agent's option {where}: {first['msg']}", reason="options_invalid") from None
