"""Reads `sources/memory_reports/*.csv`: settings that ran out of memory or ran, as people report them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import path_id, read_rows, source_files
from pipeline.contracts.strict import PositiveInt, PositiveShort, StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "memory_reports"
KINDS = ("gpu", "model", "quant", "framework")


class MemoryReportRow(StrictRow):
    """One report, by our ids. Without context_tokens none was asked for, see `estimator.verdict_audit`."""

    gpu: Text
    n_gpus: PositiveShort
    model: Text
    quant: Text
    framework: Text
    context_tokens: PositiveInt | None = None
    outcome: Literal["ran", "out_of_memory"]
    explanation: Text | None = None
    citation: Text
    locator: Text


def read_memory_reports(
    root: Path, log: FaultLog, use: CitationUse, ids: Mapping[str, Collection[str]]
) -> pl.DataFrame:
    """The table `memory_reports`, one row per `report` (file and line). Logs unknown ids, repeated rows."""
    rows: list[dict[str, object]] = []
    seen: dict[tuple[object, ...], str] = {}
    for path in source_files(root, FOLDER, ".csv"):
        name = path_id(path, root / FOLDER, log)
        if name is None:
            continue
        for line, row in read_rows(path, MemoryReportRow, log):
            use.note(row.citation, path, line)
            unknown = [kind for kind in KINDS if getattr(row, kind) not in ids[kind]]
            for kind in unknown:
                value = getattr(row, kind)
                log.add(path, kind, value, unknown_name(value, ids[kind], kind), line)
            place = f"{log.relative(path)}:{line}"
            setting = (row.gpu, row.n_gpus, row.model, row.quant, row.framework, row.context_tokens,
                       row.citation)  # fmt: skip
            if seen.setdefault(setting, place) != place:
                log.add(path, "", None, f"this report is given already at {seen[setting]}", line)
            elif not unknown:
                rows.append({"report": f"{name}:{line}", **row.model_dump()})
    return pl.DataFrame(rows, schema=polars_schema("memory_reports"), orient="row").sort("report")
