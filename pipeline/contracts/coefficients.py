"""Reads `sources/coefficients/*.csv`: the constants of the formulas, one file per formula; those of speed are
fitted, those of runtime memory are others' published ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.llama_cpp_compute import FILE as LLAMA_CPP_COMPUTE
from pipeline.contracts.reading import read_rows, source_files
from pipeline.contracts.strict import Count, Positive, StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER: Final = "coefficients"
# Blocks of each file. The levels of the last three kinds are named; those of the others are engines,
# families, ...
BLOCKS: Final = {
    "decode": ("mu", "fam", "eng", "qc", "qb", "t0", "t0eb", "kv", "kvb", "ceil", "ceilv", "moe", "multi"),
    "prefill": ("mu", "fam", "eng", "qc", "qb", "t0", "t0eb", "kv", "kvb", "moe", "multi", "prompt"),
    "runtime": (
        "activation_factor",
        "activation_floor",
        "backend_context",
        "communication",
        "prefill_tokens",
    ),
    "serving": ("global", "capacity", "ttft_floor", "pcie_lane"),
    "interval": tuple(
        f"{what}_{end}" for what in ("decode", "prefill", "serving") for end in ("low", "high")
    ),
}


class CoefficientRow(StrictRow):
    """One fitted constant. `std_err` is of ln(value)."""

    block: Text
    level: Text
    value: Positive
    unit: Text
    std_err: Positive | None = None
    n_cells: Count | None = None
    citation: Text


def read_coefficients(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """The table `coefficients`: model (the file's name), block, level, value, unit, std_err, n_cells,
    citation.

    Logs: a file that is no known formula, a missing file, unknown blocks, repeated (block, level), an
    interval whose low end is above 1 or whose high end is below 1. Rows are sorted by their key.
    """
    rows: dict[tuple[str, str, str], tuple[float, str, float | None, int | None, str]] = {}
    # the coefficients of llama.cpp's buffers have columns, and a reader, of their own
    files = {
        path.stem: path for path in source_files(root, FOLDER, ".csv") if path != root / LLAMA_CPP_COMPUTE
    }
    for model in sorted(set(BLOCKS) - set(files)):
        log.add(root / FOLDER / f"{model}.csv", "path", None, "file is missing")
    for model, path in files.items():
        if model not in BLOCKS:
            log.add(path, "path", model, unknown_name(model, BLOCKS, "formula"))
            continue
        for line, row in read_rows(path, CoefficientRow, log):
            key = (model, row.block, row.level)
            if row.block not in BLOCKS[model]:
                log.add(path, "block", row.block, unknown_name(row.block, BLOCKS[model], "block"), line)
            elif key in rows:
                log.add(path, "level", row.level, f"is given twice in block {row.block}", line)
            elif model == "interval" and (row.value > 1 if row.block.endswith("low") else row.value < 1):
                log.add(
                    path,
                    "value",
                    row.value,
                    "an interval must hold 1: low end at most 1, high end at least",
                    line,
                )
            else:
                rows[key] = (row.value, row.unit, row.std_err, row.n_cells, row.citation)
                use.note(row.citation, path, line)
                use.note_fact("coefficients", "/".join(key), "value", row.value, row.citation)
    return pl.DataFrame(
        [(*key, *rows[key]) for key in sorted(rows)], schema=polars_schema("coefficients"), orient="row"
    )
