"""Reopens the files of a release with polars, DuckDB and sqlite3, and says what is wrong with them.

Whether files hold what the dictionary and the manifest promise, as a reader finds them. What the values say
was checked before they were written.
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars as pl

from warehouse import dataset, duckdb_file, parquet, sqlite_file
from warehouse.dictionary import Table, schema_violations, table
from warehouse.estimates_detail import DETAIL_VIEW
from warehouse.manifest import Manifest


def release_faults(folder: Path, manifest: Manifest) -> list[str]:
    """Everything wrong with the release in `folder`, in words; an empty list when it can be published."""
    counts: dict[str, int] = {name: record["rows"] for name, record in manifest["tables"].items()}
    with ThreadPoolExecutor(max_workers=2) as pool:
        sqlite = pool.submit(_sqlite_faults, folder, counts)
        found = [
            fault for name in counts for fault in _parquet_faults(folder, table(name), manifest["version"])
        ]
        if found:
            return found  # the other two are made from these
        return _duckdb_faults(folder, counts) + sqlite.result()


def _parquet_faults(folder: Path, one: Table, version: str) -> list[str]:
    found = []
    for path in parquet.table_files(folder, one.name):
        shown = path.relative_to(folder).as_posix()
        try:
            frame = pl.scan_parquet(path, hive_partitioning=False)
            found += [f"{shown}: {fault.column}: {fault.rule}" for fault in schema_violations(frame, one)]
            found += [f"{shown}: {fault}" for fault in _metadata_faults(path, one, version)]
            if one.is_cube:
                found += _other_gpu_faults(frame, path, shown)
        except (pl.exceptions.PolarsError, OSError) as error:
            found.append(f"{shown}: polars cannot read it: {error}")
    return found


def _other_gpu_faults(frame: pl.LazyFrame, path: Path, shown: str) -> list[str]:
    gpu = path.parent.name.removeprefix("gpu=")
    is_other = (pl.col("gpu") != gpu).fill_null(True) if _has_gpu(frame, gpu) else pl.lit(True)
    others = frame.select(pl.col("gpu").filter(is_other).unique().cast(pl.String).sort()).collect(
        engine="streaming"
    )
    return [f"{shown}: holds rows of {other}" for other in others.get_column("gpu")]


def _has_gpu(frame: pl.LazyFrame, gpu: str) -> bool:
    """Whether the column's Enum knows the gpu at all: a comparison with an unknown value is an error."""
    dtype = frame.collect_schema()["gpu"]
    return not isinstance(dtype, pl.Enum) or gpu in dtype.categories


def _metadata_faults(path: Path, one: Table, version: str) -> list[str]:
    metadata = pl.read_parquet_metadata(path)
    expected = {"table": one.name, "version": version, "schema_version": dataset.SCHEMA_VERSION}
    return [
        f"was written as {field} {metadata.get(field)}, this is {value}"
        for field, value in expected.items()
        if metadata.get(field) != value
    ]


def _duckdb_faults(folder: Path, counts: dict[str, int]) -> list[str]:
    name = duckdb_file.FILE_NAME
    try:
        with duckdb_file.open_release(folder) as connection:
            found = [
                f"{name}: {one} has {rows} rows, should have {counts[one]}"
                for one in counts
                if (rows := _single(connection, f'SELECT count(*) FROM "{one}"')) != counts[one]
            ]
            silent = connection.execute(
                "SELECT table_name || '.' || column_name FROM duckdb_columns() "
                "WHERE NOT internal AND comment IS NULL ORDER BY 1"
            ).fetchall()
            found += [f"{name}: {column} has no comment" for (column,) in silent]
            if "estimates" in counts:
                connection.execute(f"SELECT * FROM {DETAIL_VIEW} LIMIT 1").fetchall()
            return found
    except duckdb.Error as error:
        return [f"{name}: DuckDB cannot read it: {error}"]


def _sqlite_faults(folder: Path, counts: dict[str, int]) -> list[str]:
    name = sqlite_file.FILE_NAME
    connection = sqlite3.connect(f"file:{folder / name}?mode=ro", uri=True)
    try:
        found = [f"{name}: {row[0]}" for row in connection.execute("PRAGMA quick_check") if row[0] != "ok"]
        broken = sorted({(row[0], row[2]) for row in connection.execute("PRAGMA foreign_key_check")})
        found += [f"{name}: {one} names something that is not in {target}" for one, target in broken]
        for one in counts:
            if not sqlite_file.is_in_sqlite(table(one)):
                continue
            (rows,) = connection.execute(f'SELECT count(*) FROM "{one}"').fetchone()
            if rows != counts[one]:
                found.append(f"{name}: {one} has {rows} rows, should have {counts[one]}")
        return found
    except sqlite3.Error as error:
        return [f"{name}: SQLite cannot read it: {error}"]
    finally:
        connection.close()


def _single(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0
