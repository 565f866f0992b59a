"""Reads `sources/latent_modes/*.csv`: what an engine keeps of latent attention in each of its modes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import StringConstraints

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows, source_files
from pipeline.contracts.strict import PositiveShort, StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "latent_modes"


class LatentModeRow(StrictRow):
    """One mode of an engine."""

    framework: Text
    mla_mode: Annotated[str, StringConstraints(pattern=r"^(unstated|\d+)$")]
    flash_attention: Literal["on", "off", "either"]
    keys: Literal["heads", "latent"]
    values: Literal["heads", "latent", "none"]
    rotary_elements: PositiveShort | None = None
    note: Text | None = None
    citation: Text
    locator: Text


def read_latent_modes(
    root: Path, log: FaultLog, use: CitationUse, frameworks: Collection[str]
) -> pl.DataFrame:
    """The table `latent_modes`: one row per framework, mode and state of flash attention."""
    places: dict[tuple[str, str, str], int] = {}
    rows: list[dict[str, object]] = []
    for path in source_files(root, FOLDER, ".csv"):
        for line, row in read_rows(path, LatentModeRow, log):
            key = (row.framework, row.mla_mode, row.flash_attention)
            if row.framework not in frameworks:
                fault = unknown_name(row.framework, frameworks, "framework")
                log.add(path, "framework", row.framework, fault, line)
            elif key in places:
                log.add(path, "mla_mode", row.mla_mode, f"is given already in line {places[key]}", line)
            else:
                places[key] = line
                use.note(row.citation, path, line)
                rows.append(row.model_dump())
    frame = pl.DataFrame(rows, schema=polars_schema("latent_modes"), orient="row")
    return frame.sort("framework", "mla_mode", "flash_attention")
