"""The stage: whole files under their names, and words for what is missing."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.table_store import NotStaged, TableStore
from tests.pipeline.small_project import GPUS, speeds_of, write_dictionary


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableStore:
    write_dictionary(tmp_path / "dictionary")
    monkeypatch.setattr("warehouse.dictionary.FOLDER", tmp_path / "dictionary")
    return TableStore(tmp_path / "stage", "2026.12.0")


def test_a_table_is_written_in_its_dictionary_columns_and_read_back(store: TableStore) -> None:
    frame = pl.DataFrame({"extra": [1, 2], "memory_gib": [8, 24], "card": ["b", "a"]})
    assert store.write("cards", frame) == 2
    assert store.scan("cards").collect().rows() == [("a", 24.0), ("b", 8.0)]
    assert store.rows("cards") == 2


def test_a_cube_is_its_parts(store: TableStore) -> None:
    for gpu in GPUS:
        assert store.write_partition("speeds", gpu, speeds_of(gpu)) == 2
    assert store.scan_partitions("speeds", GPUS).collect().height == 6
    assert store.scan_partition("speeds", "big").collect()["gpu"].unique().to_list() == ["big"]
    assert len(store.files("speeds")) == 3


def test_what_is_missing_is_named(store: TableStore) -> None:
    store.write_partition("speeds", "big", speeds_of("big"))
    with pytest.raises(NotStaged, match=r"table cards is not staged"):
        store.scan("cards")
    with pytest.raises(NotStaged, match=r"2 of 3 gpus: medium, small"):
        store.scan_partitions("speeds", GPUS)
    with pytest.raises(NotStaged, match="small"):
        store.scan_partition("speeds", "small")
    with pytest.raises(NotStaged):
        store.scan_partitions("speeds", [])


def test_a_failed_write_keeps_what_was_there(store: TableStore) -> None:
    store.write_partition("speeds", "big", speeds_of("big"))
    broken = speeds_of("big").with_columns(pl.col("gpu").cast(pl.String).cast(pl.Int32).cast(pl.String))
    with pytest.raises(ValueError, match="speeds"):
        store.write_partition("speeds", "big", broken.drop("tok_s"))
    assert store.rows("speeds") == 2
    assert [path.name for path in store.stage.rglob("*") if path.is_file()] == ["speeds.parquet"]


def test_parts_of_other_gpus_are_dropped(store: TableStore) -> None:
    for gpu in GPUS:
        store.write_partition("speeds", gpu, speeds_of(gpu))
    assert store.drop_other_partitions("speeds", ["big"]) == ["medium", "small"]
    assert store.staged_partitions("speeds") == ["big"]
