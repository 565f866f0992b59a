"""Reads `sources/kv_dtypes/`: how each framework can store keys and values, and in how many bytes.

Which of them runs on which hardware is in `sources/support/`; what a model's cache takes is the estimator's.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import Field, StringConstraints, model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows, source_files
from pipeline.contracts.strict import PositiveShort, StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "kv_dtypes"
_NUMBERS = (
    "k_bytes_per_element", "v_bytes_per_element", "k_bytes_per_head", "v_bytes_per_head",
    "bytes_per_token_layer", "sparse_latent_bytes", "bytes_per_row",
    "head_dim_multiple",
)  # fmt: skip


class KvDtypeRow(StrictRow):
    """A row of `sources/kv_dtypes/*.csv`. A format whose bytes nobody read leaves them empty."""

    framework: Text
    kv_dtype: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
    k_bytes_per_element: Annotated[float, Field(gt=0, le=4)] | None = None
    v_bytes_per_element: Annotated[float, Field(gt=0, le=4)] | None = None
    k_bytes_per_head: Annotated[float, Field(gt=0)] | None = None
    v_bytes_per_head: Annotated[float, Field(gt=0)] | None = None
    bytes_per_token_layer: Annotated[float, Field(gt=0)] | None = None
    sparse_latent_bytes: Annotated[float, Field(gt=0)] | None = None
    bytes_per_row: Annotated[float, Field(gt=0)] | None = None
    head_dim_multiple: PositiveShort | None = None
    flag: Text | None = None
    is_default: bool
    needs: Text | None = None
    confidence: Literal["high", "medium", "low"]
    note: Text | None = None
    citation: Text
    locator: Text | None = None

    @model_validator(mode="after")
    def _both_sides(self) -> KvDtypeRow:
        if (self.k_bytes_per_element is None) != (self.v_bytes_per_element is None):
            raise ValueError("k_bytes_per_element and v_bytes_per_element are given together")
        if self.bytes_per_token_layer is not None and self.k_bytes_per_element is not None:
            raise ValueError("bytes_per_token_layer stands in place of bytes per element")
        if self.is_default and self.k_bytes_per_element is None:
            raise ValueError("the default format needs its bytes")
        return self


def read_kv_dtypes(root: Path, log: FaultLog, use: CitationUse, frameworks: Collection[str]) -> pl.DataFrame:
    """The table `kv_dtypes`, sorted by framework and format. `frameworks` are the known framework ids."""
    rows: dict[tuple[str, str], KvDtypeRow] = {}
    for path in source_files(root, FOLDER, ".csv"):
        for line, row in read_rows(path, KvDtypeRow, log):
            if row.framework not in frameworks:
                log.add(
                    path,
                    "framework",
                    row.framework,
                    unknown_name(row.framework, frameworks, "framework"),
                    line,
                )
                continue
            key = row.framework, row.kv_dtype
            if key in rows:
                log.add(path, "kv_dtype", row.kv_dtype, f"is given twice for {row.framework}", line)
                continue
            if row.is_default and any(
                known.is_default for known in rows.values() if known.framework == key[0]
            ):
                log.add(path, "is_default", True, f"{row.framework} has another default", line)
                continue
            use.note(row.citation, path, line)
            for name in _NUMBERS:
                if getattr(row, name) is not None:
                    use.note_fact("kv_dtypes", "/".join(key), name, getattr(row, name), row.citation)
            rows[key] = row
    schema = polars_schema("kv_dtypes")
    return pl.DataFrame([row.model_dump() for _, row in sorted(rows.items())], schema=schema)
