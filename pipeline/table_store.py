"""Staged tables on disk, and the words for one that is missing. The warehouse knows how to write a file."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from warehouse.atomic import PARTIAL_SUFFIX
from warehouse.dictionary import conform
from warehouse.parquet import (
    RELEASE_LEVEL,
    cube_files,
    cube_path,
    row_count,
    scan_cube_part,
    scan_table,
    table_files,
    table_path,
    write_cube_part,
    write_table,
)


class NotStaged(Exception):
    """A table, or some partitions of it, have not been computed yet."""


@dataclass(frozen=True)
class TableStore:
    """The stage: `<stage>/<table>.parquet`, and `<stage>/<cube>/gpu=<gpu>/<cube>.parquet`.

    A release links these very files, so they carry the version and the compression it is published with.
    """

    stage: Path
    version: str

    def path(self, table: str) -> Path:
        """Where a small table lies."""
        return table_path(self.stage, table)

    def write(self, table: str, frame: pl.DataFrame | pl.LazyFrame) -> int:
        """Stage a small table in its dictionary's columns and types, sorted by its key; returns its rows."""
        typed = conform(frame.lazy(), table)
        return row_count(write_table(typed, table, self.stage, self.version, RELEASE_LEVEL))

    def write_partition(self, table: str, gpu: str, frame: pl.DataFrame | pl.LazyFrame) -> int:
        """Stage one gpu's part of a cube, streaming it when it is lazy; returns its rows.

        Columns and types must be the dictionary's already (`warehouse.dictionary.cube_schema`).
        """
        return row_count(write_cube_part(frame, table, gpu, self.stage, self.version, RELEASE_LEVEL))

    def scan(self, table: str) -> pl.LazyFrame:
        """A small table. Raises NotStaged when it has not been computed."""
        if not self.path(table).is_file():
            raise NotStaged(f"table {table} is not staged yet: materialize it first (or run `tokcube build`)")
        return scan_table(self.stage, table)

    def read(self, names: Iterable[str]) -> dict[str, pl.DataFrame]:
        """Several small tables in memory, by name. Raises NotStaged as `scan`."""
        return {name: self.scan(name).collect() for name in names}

    def scan_partition(self, table: str, gpu: str) -> pl.LazyFrame:
        """One gpu's part of a cube."""
        if not cube_path(self.stage, table, gpu).is_file():
            raise NotStaged(f"{table} is not staged yet for {gpu}: materialize that partition first")
        return scan_cube_part(self.stage, table, gpu)

    def scan_partitions(self, table: str, gpus: Collection[str]) -> pl.LazyFrame:
        """A whole cube. Raises NotStaged, naming the first few, when the part of any of `gpus` is missing."""
        missing = sorted(set(gpus) - set(self.staged_partitions(table)))
        if missing or not gpus:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise NotStaged(f"{table} is not staged yet for {len(missing)} of {len(gpus)} gpus: {shown}")
        paths = [cube_path(self.stage, table, gpu) for gpu in sorted(gpus)]
        return pl.scan_parquet(paths, hive_partitioning=False)

    def staged_partitions(self, table: str) -> list[str]:
        """The gpus whose part of the cube is staged, sorted."""
        return sorted(path.parent.name.partition("=")[2] for path in cube_files(self.stage, table))

    def drop_other_partitions(self, table: str, gpus: Collection[str]) -> list[str]:
        """Remove the parts of gpus that are no longer among `gpus`; returns the removed ones."""
        gone = [gpu for gpu in self.staged_partitions(table) if gpu not in set(gpus)]
        for gpu in gone:
            shutil.rmtree(cube_path(self.stage, table, gpu).parent)
        return gone

    def remove_leftovers(self) -> None:
        """Remove what a killed build left half-written. Only while no other build is at work."""
        for path in self.stage.rglob(f".*{PARTIAL_SUFFIX}"):
            path.unlink()

    def files(self, table: str) -> list[Path]:
        """The files a table consists of, sorted; none when it is not staged."""
        return table_files(self.stage, table)

    def rows(self, table: str) -> int:
        """Rows of a staged table, from the file footers."""
        return sum(row_count(path) for path in self.files(table))
