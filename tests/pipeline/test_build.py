"""The one build mechanism: one run fills tables and all partitions, and a failure releases nothing."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from pipeline.assets.release import release_asset
from pipeline.build import BuildFailed, run_build
from pipeline.progress import Messages, Silent
from pipeline.project import Project
from pipeline.table_store import NotStaged, TableStore
from tests.pipeline.small_project import GPUS, small_assets, speeds_of, write_dictionary
from warehouse.release import build_lock


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    write_dictionary(tmp_path / "dictionary")
    monkeypatch.setattr("warehouse.dictionary.FOLDER", tmp_path / "dictionary")
    return Project(
        sources=tmp_path / "sources",
        stage=tmp_path / "stage",
        releases=tmp_path / "releases",
        version="2026.12.0",
    )


def test_one_run_fills_every_table_and_every_partition(built: Project) -> None:
    said: list[str] = []
    report = run_build(built, GPUS, small_assets(built), Messages(said.append))
    store = TableStore(built.stage, built.version)
    assert store.staged_partitions("speeds") == sorted(GPUS)
    assert store.scan("summary").collect().item(0, "value") == 2.0 * len(GPUS)
    rows = {one.table: (one.rows, one.files) for one in report.tables}
    assert rows == {"cards": (3, 1), "sizes": (3, 1), "speeds": (6, 3), "summary": (1, 1)}
    assert said == ["speeds: 3 of 3 gpus, 6 rows, about 0 s left"]


def test_what_was_built_is_released_whole(built: Project) -> None:
    assets = [*small_assets(built), release_asset(["cards", "sizes", "speeds", "summary"])]
    report = run_build(built, GPUS, assets, Silent())
    assert report.release == built.releases / built.version
    assert {one.table for one in report.tables} == {"cards", "sizes", "speeds", "summary"}
    assert min(report.release_seconds, report.check_seconds) > 0
    assert (report.release / "speeds" / "gpu=big" / "speeds.parquet").is_file()
    again = run_build(built, GPUS, assets, Silent())
    assert again.release == report.release


def test_a_release_is_not_changed_and_the_failure_says_so(built: Project) -> None:
    release = release_asset(["cards", "sizes", "speeds", "summary"])
    run_build(built, GPUS, [*small_assets(built), release], Silent())
    faster = small_assets(built, part=lambda gpu: speeds_of(gpu, tok_s=20.0))
    with pytest.raises(BuildFailed, match="raise the version") as failed:
        run_build(built, GPUS, [*faster, release], Silent())
    assert [failure.where for failure in failed.value.failures] == ["release"]


def test_two_builds_give_the_same_bytes(built: Project) -> None:
    def staged() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(built.stage.rglob("*.parquet"))}

    run_build(built, GPUS, small_assets(built), Silent())
    first = staged()
    run_build(built, GPUS, small_assets(built), Silent())
    assert staged() == first


def test_a_broken_promise_of_the_dictionary_stops_what_comes_after(built: Project) -> None:
    assets = small_assets(built, part=lambda gpu: speeds_of(gpu, tok_s=1000.0 if gpu == "medium" else 10.0))
    with pytest.raises(BuildFailed) as failed:
        run_build(built, GPUS, assets, Silent())
    [failure] = failed.value.failures
    assert failure.where == "check conforms of speeds"
    assert failure.why == "speeds.tok_s: must be at most 100 in 2 row(s) (such as 1000.0, 500.0)"
    with pytest.raises(NotStaged):
        TableStore(built.stage, built.version).scan("summary")


def test_a_part_in_the_wrong_place_is_found(built: Project) -> None:
    assets = small_assets(built, part=lambda gpu: speeds_of("big"))
    with pytest.raises(BuildFailed, match=r"must be the partition's gpu medium in 2 row"):
        run_build(built, GPUS, assets, Silent())


def test_a_failing_step_is_named_and_leaves_no_half_file(built: Project) -> None:
    def part(gpu: str) -> pl.LazyFrame:
        if gpu == "small":
            raise ZeroDivisionError("no bandwidth")
        return speeds_of(gpu)

    with pytest.raises(BuildFailed) as failed:
        run_build(built, GPUS, small_assets(built, part=part), Silent())
    [failure] = failed.value.failures
    assert failure.where == "speeds"
    assert "no bandwidth" in failure.why
    assert "ZeroDivisionError" in failure.trace
    left = {path.name for path in built.stage.rglob("*") if path.is_file()}
    assert left == {".lock", "cards.parquet", "sizes.parquet", "speeds.parquet"}


def test_an_interrupted_run_is_no_failed_step(built: Project) -> None:
    def part(gpu: str) -> pl.LazyFrame:
        raise dg.DagsterExecutionInterruptedError

    with pytest.raises(KeyboardInterrupt):
        run_build(built, GPUS, small_assets(built, part=part), Silent())


def test_source_tables_the_dictionary_does_not_know_are_refused(built: Project) -> None:
    def read(root: Path) -> dict[str, pl.DataFrame]:
        return {"cardz": pl.DataFrame()}

    with pytest.raises(BuildFailed, match=r"not read: cards; not in the dictionary: cardz"):
        run_build(built, GPUS, small_assets(built, read=read), Silent())
    assert not list(built.stage.rglob("*.parquet"))


def test_two_builds_at_once_are_refused(built: Project) -> None:
    built.stage.mkdir()
    with build_lock(built.stage), pytest.raises(BuildFailed, match="another build") as failed:
        run_build(built, GPUS, small_assets(built), Silent())
    assert [failure.where for failure in failed.value.failures] == ["build"]
    assert not list(built.stage.rglob("*.parquet"))


def test_what_a_killed_build_left_is_removed(built: Project) -> None:
    leftover = built.stage / "speeds" / "gpu=big" / ".speeds.parquet.123.partial"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    run_build(built, GPUS, small_assets(built), Silent())
    assert not leftover.exists()


def test_a_gpu_that_is_gone_leaves_the_stage(built: Project) -> None:
    run_build(built, GPUS, small_assets(built), Silent())
    run_build(built, GPUS[:2], small_assets(built, GPUS[:2]), Silent())
    assert TableStore(built.stage, built.version).staged_partitions("speeds") == sorted(GPUS[:2])
