"""Reads `sources/usable_memory/*.csv`: what drivers, engines and systems report as accelerator memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows, source_files
from pipeline.contracts.strict import StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "usable_memory"
# A reading outside these shares of the marketed memory is a slip of unit or names another accelerator.
LOWEST_SHARE, HIGHEST_SHARE = 0.5, 1.0


class Reading(StrictRow):
    """One reading; its fields are the columns of the file."""

    gpu: Text | None = None
    device: Text
    os: Literal["linux", "windows", "macos", "unstated"]
    measure: Literal["nvidia-smi-total", "cuda-total", "engine-total", "metal-working-set", "os-limit"]
    reading_mib: Annotated[float, Field(gt=0)]
    state: Literal["accepted", "flagged"]
    reason: Text | None = None
    citation: Text
    locator: Text

    @model_validator(mode="after")
    def _flag_has_a_reason(self) -> Self:
        if self.state == "flagged" and self.reason is None:
            raise ValueError("a flagged reading needs a reason")
        return self


def read_usable_memory(
    root: Path, log: FaultLog, use: CitationUse, memory_gib: Mapping[str, float | None]
) -> pl.DataFrame:
    """All readings as the table `usable_memory`. `memory_gib` maps every known gpu to its marketed memory."""
    rows: list[dict[str, object]] = []
    places: dict[tuple[str, str, str, str], str] = {}
    for path in source_files(root, FOLDER, ".csv"):
        for line, reading in read_rows(path, Reading, log):
            use.note(reading.citation, path, line)
            _check_gpu(path, line, reading, memory_gib, log)
            key = (reading.device, reading.measure, reading.citation, reading.locator)
            if key in places:
                log.add(path, "", None, f"this reading is given already in {places[key]}", line)
                continue
            places[key] = f"{log.relative(path)}:{line}"
            rows.append(reading.model_dump())
    frame = pl.DataFrame(rows, schema=polars_schema("usable_memory"), orient="row")
    return frame.sort("device", "measure", "citation", "locator")


def _check_gpu(
    path: Path, line: int, reading: Reading, memory_gib: Mapping[str, float | None], log: FaultLog
) -> None:
    if reading.gpu is None:
        return
    if reading.gpu not in memory_gib:
        log.add(path, "gpu", reading.gpu, unknown_name(reading.gpu, memory_gib, "gpu"), line)
        return
    marketed = memory_gib[reading.gpu]
    if marketed is None:
        return
    share = reading.reading_mib / (marketed * 1024)
    if not LOWEST_SHARE <= share <= HIGHEST_SHARE:
        allowed = f"is {share:.3g} of the {marketed:g} GiB of {reading.gpu}: must be MiB, 0.5 to 1 of them"
        log.add(path, "reading_mib", reading.reading_mib, allowed, line)
