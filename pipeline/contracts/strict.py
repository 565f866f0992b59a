"""The strict base of every source record: unknown fields, loose types and non-finite numbers are refused."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

# Tab and line feed are text; the others, and marks that turn the direction of writing, can hide text.
NO_CONTROL_CHARACTERS = r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f\x{202a}-\x{202e}\x{2066}-\x{2069}]*$"
_PARTIAL_DATE = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?")


def _existing_date(value: str) -> str:
    if not _PARTIAL_DATE.fullmatch(value):
        raise ValueError("must be a date written YYYY-MM-DD, YYYY-MM or YYYY")
    try:
        date(*[*map(int, value.split("-")), 1, 1][:3])
    except ValueError as error:
        raise ValueError(f"is no date: {error}") from None
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# The upper ends are those of the columns' types, so that a slip is a fault and not an overflow.
PositiveInt = Annotated[int, Field(gt=0, le=2**31 - 1)]
PositiveShort = Annotated[int, Field(gt=0, le=2**15 - 1)]
PositiveLong = Annotated[int, Field(gt=0, le=2**63 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
CountShort = Annotated[int, Field(ge=0, le=2**15 - 1)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=NO_CONTROL_CHARACTERS)]
PartialDate = Annotated[str, AfterValidator(_existing_date)]


class Strict(BaseModel):
    """A source record: unknown field = fault, no coercion of text to numbers, finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StrictRow(BaseModel):
    """A CSV row: as `Strict`, but its cells are text, so numbers, booleans and dates are parsed from it."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True, allow_inf_nan=False)
