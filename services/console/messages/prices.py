"""Prices of models: what may be put, and what is answered."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

Money = Annotated[Decimal, Field(ge=0, max_digits=20, decimal_places=9)]


class Price(BaseModel):
    """Prices per million tokens of a model, from an instant on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
    currency: Annotated[str, StringConstraints(pattern="^[A-Z]{3}$")] = "USD"
    input_price: Money
    output_price: Money
    cache_read_price: Money = Decimal(0)
    cache_write_price: Money = Decimal(0)
    valid_from: AwareDatetime
    note: Annotated[str, StringConstraints(max_length=500)] = ""


class PricesRequest(BaseModel):
    """Prices to put into force, all or none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prices: Annotated[list[Price], Field(min_length=1, max_length=5_000)]


class RepricingRequest(BaseModel):
    """Usage in [from, to) is to be priced at the prices of now; of these models, or of all."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    from_at: AwareDatetime = Field(alias="from")
    to_at: AwareDatetime = Field(alias="to")
    models: Annotated[list[str], Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _is_range(self) -> RepricingRequest:
        if self.from_at >= self.to_at:
            raise ValueError("to: must be later than from")
        return self


class ShownPrice(BaseModel):
    """A price as it stands, or stood."""

    id: int
    model: str
    currency: str
    input_price: str
    output_price: str
    cache_read_price: str
    cache_write_price: str
    valid_from: datetime
    valid_to: datetime | None
    note: str
    created_at: datetime
    created_by: str
    retired_at: datetime | None
    retired_by: str | None


class PriceList(BaseModel):
    """The price table, by model and time."""

    prices: list[ShownPrice]


class PricesAnswer(BaseModel):
    """How many prices changed; what is the same already counts as unchanged."""

    changed: int
    unchanged: int


class RepricingAnswer(BaseModel):
    """The wish that the cost attributor will meet."""

    repricing_id: UUID


class Repricing(BaseModel):
    """How far a repricing is, and by how much the sums changed, by currency."""

    repricing_id: UUID
    status: str
    requested_by: str
    requested_at: datetime
    from_at: datetime
    to_at: datetime
    models: list[str] | None
    lines: int
    changed: int
    difference: dict[str, str]
    error: str | None
    finished_at: datetime | None
