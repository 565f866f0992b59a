"""The strict base of every source record: unknown fields, loose types and non-finite numbers are refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]


class Strict(BaseModel):
    """A source record: unknown field = fault, no coercion of text to numbers, finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StrictRow(BaseModel):
    """A CSV row: as `Strict`, but its cells arrive as text, so numbers, booleans and dates are parsed from it."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True, allow_inf_nan=False)
