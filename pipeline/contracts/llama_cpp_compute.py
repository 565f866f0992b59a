"""Reads `sources/coefficients/llama_cpp_compute.csv`: parts of llama.cpp's compute buffers without a closed
form.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import polars as pl

from estimator.llama_cpp_compute import COEFFICIENTS
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import StrictRow, Text
from warehouse.dictionary import polars_schema

FILE: Final = "coefficients/llama_cpp_compute.csv"
_MAY_BE_NEGATIVE: Final = (
    "score_floats",
    "first_device_floats",
    "last_device_floats",
    "first_device_scores_floats",
    "last_device_scores_floats",
    "rotated_floats",
)


class LlamaCppComputeRow(StrictRow):
    """One model. Floats are 4-byte floats; an empty cell leaves the closed form."""

    model: Text
    layer_floats: float | None = None
    slot_floats: float | None = None
    output_floats: float | None = None
    output_masks: float | None = None
    score_floats: float | None = None
    first_device_floats: float | None = None
    last_device_floats: float | None = None
    first_device_scores_floats: float | None = None
    last_device_scores_floats: float | None = None
    rotated_floats: float | None = None
    citation: Text


def read_llama_cpp_compute(
    root: Path, log: FaultLog, use: CitationUse, models: Collection[str]
) -> pl.DataFrame:
    """The table `llama_cpp_compute`.

    Logs: a missing file, an unknown or repeated model, a row without any coefficient, slot_floats without
    layer_floats, output_masks without output_floats, a negative amount where only copies may be fewer.
    """
    path = root / FILE
    rows: dict[str, dict[str, object]] = {}
    if not path.is_file():
        log.add(path, "path", None, "file is missing")
        return pl.DataFrame(schema=polars_schema("llama_cpp_compute"))
    for line, row in read_rows(path, LlamaCppComputeRow, log):
        values = {name: getattr(row, name) for name in COEFFICIENTS}
        negative = [
            name for name, value in values.items()
            if value is not None and value < 0 and name not in _MAY_BE_NEGATIVE
        ]  # fmt: skip
        if row.model not in models:
            log.add(path, "model", row.model, unknown_name(row.model, models, "model"), line)
        elif row.model in rows:
            log.add(path, "model", row.model, "is given twice", line)
        elif all(value is None for value in values.values()):
            log.add(path, "model", row.model, "has no coefficient", line)
        elif row.slot_floats is not None and row.layer_floats is None:
            log.add(path, "slot_floats", row.slot_floats, "needs layer_floats", line)
        elif row.output_masks is not None and row.output_floats is None:
            log.add(path, "output_masks", row.output_masks, "needs output_floats", line)
        elif negative:
            log.add(path, negative[0], values[negative[0]], "must be at least 0", line)
        else:
            rows[row.model] = {"model": row.model, **values, "citation": row.citation}
            use.note(row.citation, path, line)
    return pl.DataFrame(
        [rows[model] for model in sorted(rows)], schema=polars_schema("llama_cpp_compute"), orient="row"
    )
