"""Parquet files: same rows same bytes, whole or absent, readable by path and by content."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

from tests.warehouse.small_stage import GPUS, VERSION, best_fit, estimates
from warehouse import dictionary, parquet

ROOT = Path(__file__).parents[2]


def test_table_reads_back_sorted_by_key_and_typed(tmp_path: Path) -> None:
    shuffled = best_fit().reverse()
    path = parquet.write_table(shuffled, "best_fit", tmp_path, VERSION)
    assert path == tmp_path / "best_fit.parquet"
    back = pl.read_parquet(path)
    assert back.schema == shuffled.schema  # Enums included
    assert back.equals(best_fit().sort(dictionary.table("best_fit").key))
    assert parquet.row_count(path) == 4


def test_metadata_says_what_the_file_is(tmp_path: Path) -> None:
    metadata = pl.read_parquet_metadata(parquet.write_table(best_fit(), "best_fit", tmp_path, VERSION))
    assert metadata["table"] == "best_fit"
    assert metadata["version"] == VERSION
    columns = {column["name"]: column for column in json.loads(metadata["columns"])}
    assert columns["total_gib"]["unit"] == "GiB"
    assert list(parquet.file_metadata("best_fit", VERSION)) == sorted(
        parquet.file_metadata("best_fit", VERSION)
    )


def test_frame_of_other_columns_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(parquet.NotConforming, match=r"best_fit\.quant: column is missing"):
        parquet.write_table(best_fit().drop("quant"), "best_fit", tmp_path, VERSION)
    with pytest.raises(parquet.NotConforming, match="must have type f32, has Float64"):
        parquet.write_table(best_fit().cast({"total_gib": pl.Float64}), "best_fit", tmp_path, VERSION)
    assert list(tmp_path.iterdir()) == []


def test_failed_writing_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = parquet.write_table(best_fit(), "best_fit", tmp_path, VERSION)
    before = path.read_bytes()
    too_big = best_fit().lazy().with_columns((pl.col("n_gpus").cast(pl.Int32) * 100_000).cast(pl.Int16))
    with pytest.raises(pl.exceptions.InvalidOperationError):
        parquet.write_table(too_big, "best_fit", tmp_path, VERSION)
    assert [each.name for each in tmp_path.iterdir()] == ["best_fit.parquet"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("gpu", ["../etc", "a/b", "", ".hidden", "a b"])
def test_gpu_that_is_no_file_name_is_refused(tmp_path: Path, gpu: str) -> None:
    with pytest.raises(ValueError, match="cannot be a folder name"):
        parquet.cube_path(tmp_path, "estimates", gpu)


def test_cube_is_found_by_path_and_by_content(stage: Path) -> None:
    """The gpu stands in the path and in the file: every way of reading sees it once, with the same value."""
    files = stage / "estimates" / "gpu=*" / "estimates.parquet"
    assert parquet.scan_table(stage, "estimates").collect().height == 8
    assert parquet.scan_cube_part(stage, "estimates", GPUS[1]).collect().equals(estimates(GPUS[1]))
    for frame in (
        pl.scan_parquet(files),
        pl.scan_parquet(files, hive_partitioning=True),
        pl.scan_parquet(stage / "estimates"),
    ):
        found = frame.filter(pl.col("gpu") == GPUS[0]).collect()
        assert found.columns == list(dictionary.table("estimates").column_names)
        assert found.get_column("gpu").cast(pl.String).to_list() == [GPUS[0]] * 4
    for option in ("", ", hive_partitioning = true", ", hive_partitioning = false"):
        rows = duckdb.sql(f"SELECT DISTINCT gpu FROM read_parquet('{files}'{option}) WHERE gpu = '{GPUS[0]}'")
        assert rows.fetchall() == [(GPUS[0],)]


def test_statistics_follow_the_text_of_an_enum(tmp_path: Path) -> None:
    """DuckDB skips row groups by the least and greatest text, whatever the order of the Enum was."""
    kinds = pl.Enum(["z", "a", "m"])
    path = tmp_path / "x.parquet"
    parquet.write_parquet(pl.LazyFrame({"kind": pl.Series(["z", "a", "m"], dtype=kinds)}), path, {}, 3)
    query = f"SELECT stats_min_value, stats_max_value FROM parquet_metadata('{path}')"
    assert duckdb.sql(query).fetchall() == [("a", "z")]


def test_table_that_was_not_written(tmp_path: Path) -> None:
    assert parquet.table_files(tmp_path, "best_fit") == []
    with pytest.raises(FileNotFoundError, match="best_fit has not been written"):
        parquet.scan_table(tmp_path, "best_fit")


WRITE_TWICE = """
import sys
from pathlib import Path
import polars as pl
from tests.warehouse.small_stage import VERSION, best_fit, write_stage
from warehouse import duckdb_file, parquet, sqlite_file
folder = write_stage(Path(sys.argv[1]))
depths = pl.DataFrame({"extra": range(50_000)}, schema={"extra": pl.Int32})
deeper = pl.col("context_tokens") + pl.col("extra")
many = best_fit().join(depths, how="cross").with_columns(context_tokens=deeper).drop("extra")
parquet.write_table(many, "best_fit", folder, VERSION)
sqlite_file.build_sqlite(folder, VERSION)
duckdb_file.build_duckdb(folder, VERSION)
(folder / "duckdb.content").write_text(duckdb_file.content_hash(folder))
(folder / "tokcube.duckdb").unlink()  # DuckDB does not promise the same bytes
"""


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.*")
        if path.is_file()
    }


@pytest.mark.slow
def test_two_processes_with_one_and_two_threads_write_the_same_bytes(tmp_path: Path) -> None:
    for threads in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", WRITE_TWICE, str(tmp_path / threads)],
            cwd=ROOT,
            env=os.environ | {"POLARS_MAX_THREADS": threads, "PYTHONHASHSEED": threads},
            check=True,
        )
    first = hashes(tmp_path / "1")
    assert {"best_fit.parquet", "duckdb.content", "tokcube.sqlite"} <= set(first)
    assert hashes(tmp_path / "2") == first
