"""Writes and finds the Parquet files of the dataset: same rows, same bytes. Which rows belong in them, not
here.

A cube is one file per gpu, `estimates/gpu=<gpu>/estimates.parquet`, and the gpu is a column of the file as
well as a part of its path. Tested: DuckDB (1.5 and 2.0) and polars read such folders and single files alike
and skip the other gpus' files by path. With the column in the path alone, polars needs
`hive_partitioning=True` for a glob and a single file does not say which gpu it is about. The price:
pandas/pyarrow must read the folder with `partitioning=None` (a single file needs nothing).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from warehouse import dataset
from warehouse.atomic import whole_file
from warehouse.dictionary import Table, rises_by, schema_violations, table

STAGE_LEVEL = 3
RELEASE_LEVEL = (
    5  # a seventh smaller than 3 with these row groups; 6 saves 2 % more and takes half as long again
)
ROW_GROUP_ROWS = 491_520

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class NotConforming(ValueError):
    """A frame's columns are not those of its table; the message names each difference."""


def file_metadata(name: str, version: str) -> dict[str, str]:
    """Key-value metadata of a table's files, keys sorted: what it is, version, licence and its columns as
    JSON.

    Nothing here may depend on time, machine or run, because it is part of the bytes.
    """
    one = table(name)
    columns = [
        {"name": column.name, "dtype": column.dtype, "unit": column.unit, "description": column.description}
        for column in one.columns
    ]
    metadata = {
        "dataset": dataset.DATASET,
        "table": one.name,
        "version": version,
        "schema_version": dataset.SCHEMA_VERSION,
        "licence": dataset.LICENCE,
        "description": one.description,
        "key": ",".join(one.key),
        "columns": json.dumps(columns, ensure_ascii=False, separators=(",", ":")),
    }
    return dict(sorted(metadata.items()))


def table_path(folder: Path, name: str) -> Path:
    """Where a small table lies: `<folder>/<table>.parquet`."""
    return folder / f"{name}.parquet"


def cube_path(folder: Path, name: str, gpu: str) -> Path:
    """Where one gpu's part of a cube lies. Raises ValueError for a gpu id that is no plain file name."""
    if not _SAFE_NAME.fullmatch(gpu):
        raise ValueError(f"gpu id {gpu!r} cannot be a folder name: letters, digits, '.', '_' and '-' only")
    return folder / name / f"gpu={gpu}" / f"{name}.parquet"


def cube_files(folder: Path, name: str) -> list[Path]:
    """The parts of a cube that are there, in the order of their gpus."""
    return sorted((folder / name).glob(f"gpu=*/{name}.parquet"))


def table_files(folder: Path, name: str) -> list[Path]:
    """All files of a table, cube or not; empty when it has not been written."""
    if table(name).is_cube:
        return cube_files(folder, name)
    path = table_path(folder, name)
    return [path] if path.is_file() else []


def write_table(
    frame: pl.DataFrame | pl.LazyFrame, name: str, folder: Path, version: str, level: int = STAGE_LEVEL
) -> Path:
    """Write a small table, rows sorted by its key. NotConforming when its columns are not the table's."""
    path = table_path(folder, name)
    one = table(name)
    rows = _checked(frame, one).collect()
    if not rows.select(rises_by(one.key).all()).item():  # sorting millions of rows takes longer than looking
        rows = rows.sort(one.key)
    write_parquet(rows.lazy(), path, file_metadata(name, version), level)
    return path


def write_cube_part(
    frame: pl.DataFrame | pl.LazyFrame,
    name: str,
    gpu: str,
    folder: Path,
    version: str,
    level: int = STAGE_LEVEL,
) -> Path:
    """Write one gpu's part of a cube, streamed, rows as they come: built by the caller in key order.

    Raises NotConforming as `write_table` does. That the rows are all of this gpu is not looked at here.
    """
    path = cube_path(folder, name, gpu)
    write_parquet(_checked(frame, table(name)), path, file_metadata(name, version), level)
    return path


def write_parquet(frame: pl.LazyFrame, path: Path, metadata: Mapping[str, str], level: int) -> None:
    """Write any frame: zstd, fixed row groups, statistics, sorted metadata, whole or not at all.

    The bytes depend on the rows, their order, this code and the polars version, not on the number of threads.
    """
    with whole_file(path) as partial:
        frame.sink_parquet(
            partial,
            compression="zstd",
            compression_level=level,
            row_group_size=ROW_GROUP_ROWS,
            statistics=True,
            maintain_order=True,
            metadata=dict(sorted(metadata.items())),
            engine="streaming",
        )


def scan_table(folder: Path, name: str) -> pl.LazyFrame:
    """A written table, cube or not, as a LazyFrame. Raises FileNotFoundError when there is no file of it."""
    files = table_files(folder, name)
    if not files:
        raise FileNotFoundError(f"{name} has not been written to {folder}")
    return pl.scan_parquet(files, hive_partitioning=False)


def scan_cube_part(folder: Path, name: str, gpu: str) -> pl.LazyFrame:
    """One gpu's part of a cube as a LazyFrame."""
    return pl.scan_parquet(cube_path(folder, name, gpu), hive_partitioning=False)


def row_count(path: Path) -> int:
    """Rows of a Parquet file, from its footer."""
    return int(pl.scan_parquet(path, hive_partitioning=False).select(pl.len()).collect().item())


def _checked(frame: pl.DataFrame | pl.LazyFrame, one: Table) -> pl.LazyFrame:
    faults = schema_violations(frame, one)
    if faults:
        raise NotConforming("; ".join(f"{fault.table}.{fault.column}: {fault.rule}" for fault in faults))
    return frame.lazy()
