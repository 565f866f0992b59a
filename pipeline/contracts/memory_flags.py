"""Reads `sources/memory_flags/*.csv`: parts of memory logs that say something else than they seem to."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import StringConstraints

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows, source_files
from pipeline.contracts.strict import StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "memory_flags"


class MemoryFlag(StrictRow):
    """Why one part of one log is not compared with an estimate, and where that can be seen."""

    log_id: Annotated[str, StringConstraints(pattern=r"^ml-[0-9a-f]{12}$")]
    part: Literal["kv", "weights", "compute", "total"]
    reason: Text
    citation: Text
    locator: Text


def read_memory_flags(root: Path, log: FaultLog, use: CitationUse, log_ids: Collection[str]) -> pl.DataFrame:
    """The table `memory_flags`: one row per log and part; `log_ids` are the logs there are."""
    places: dict[tuple[str, str], str] = {}
    rows: list[dict[str, object]] = []
    for path in source_files(root, FOLDER, ".csv"):
        for line, row in read_rows(path, MemoryFlag, log):
            key = (row.log_id, row.part)
            if row.log_id not in log_ids:
                log.add(path, "log_id", row.log_id, unknown_name(row.log_id, log_ids, "memory log"), line)
            elif key in places:
                log.add(path, "log_id", row.log_id, f"is flagged already at {places[key]}", line)
            else:
                places[key] = f"{log.relative(path)}:{line}"
                use.note(row.citation, path, line)
                rows.append(row.model_dump())
    frame = pl.DataFrame(rows, schema=polars_schema("memory_flags"), orient="row")
    return frame.sort("log_id", "part")
