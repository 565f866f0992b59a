"""Reads `sources/file_sizes/*.csv`: how large published weight files are, and how exactly that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import polars as pl
from pydantic import StringConstraints, model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.reading import path_id, read_rows, source_files
from pipeline.contracts.strict import Positive, PositiveLong, StrictRow, Text

FOLDER = "file_sizes"
UNIT_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 10**9}


class FileSizeRow(StrictRow):
    """One file (or the sum of its tensors) as its source prints it; `tolerance` is half a step of a rounded
    figure.
    """

    file_id: Annotated[str, StringConstraints(pattern=r"^fs-[0-9a-f]{12}$")]
    hf_repo: Text | None = None
    model_name: Text | None = None
    quant_name: Text | None = None
    file_name: Text | None = None
    format: Literal["gguf", "safetensors", "mlx-safetensors"]
    size_kind: Literal["file", "tensors"]
    size_bytes: PositiveLong | None = None
    size_value: Positive
    size_unit: Literal["B", "KiB", "MiB", "GiB", "GB"]
    precision: Literal["exact", "rounded", "unverified"]
    tolerance: Positive | None = None
    params_exact: PositiveLong | None = None
    params_label: Text | None = None
    confidence: Literal["high", "medium", "low"]
    note: Text | None = None
    citation: Text
    locator: Text

    @model_validator(mode="after")
    def _precision_is_stated(self) -> Self:
        if (self.precision == "rounded") != (self.tolerance is not None):
            raise ValueError("a rounded size, and only that, has a tolerance")
        if self.precision == "exact" and self.size_bytes is None:
            raise ValueError("an exact size needs size_bytes")
        return self


SCHEMA: dict[str, type[pl.DataType]] = {
    "file_id": pl.String, "hf_repo": pl.String, "model_name": pl.String, "quant_name": pl.String,
    "file_name": pl.String, "format": pl.String, "size_kind": pl.String, "size_bytes": pl.Int64,
    "size_gib": pl.Float64, "tolerance_gib": pl.Float64, "precision": pl.String, "params_exact": pl.Int64,
    "params_label": pl.String, "confidence": pl.String, "note": pl.String, "citation": pl.String,
    "locator": pl.String,
}  # fmt: skip


def read_file_sizes(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """All published sizes, one row per `file_id`: `size_bytes` where printed to the byte, `size_gib` always.

    Catalogues that divide by 1024 and print GB are carried with the unit they mean. Faults as for anchors.
    """
    first_seen: dict[str, str] = {}
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA}
    for path in source_files(root, FOLDER, ".csv"):
        if path_id(path, root / FOLDER, log) is None:
            continue
        for line, row in read_rows(path, FileSizeRow, log):
            use.note(row.citation, path, line)
            place = f"{log.relative(path)}:{line}"
            if first_seen.setdefault(row.file_id, place) != place:
                log.add(path, "file_id", row.file_id, f"is already used at {first_seen[row.file_id]}", line)
                continue
            scale = UNIT_BYTES[row.size_unit] / 2**30
            derived = {
                "size_gib": row.size_value * scale,
                "tolerance_gib": None if row.tolerance is None else row.tolerance * scale,
            }
            for name, cells in columns.items():
                cells.append(derived[name] if name in derived else getattr(row, name))
    return pl.DataFrame(columns, schema=SCHEMA)
