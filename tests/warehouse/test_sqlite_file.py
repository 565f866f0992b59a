"""The SQLite file: constraints, the columns' meaning, and coded tables that read as if they were not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.warehouse.small_stage import IDS, VERSION, best_fit
from warehouse import dictionary, parquet
from warehouse.sqlite_file import FILE_NAME, HEADROOM_VIEW, build_sqlite


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


def test_plain_table_reads_back(stage: Path) -> None:
    path = build_sqlite(stage, VERSION)
    assert query(path, "SELECT citation, url, repo, read_on, access FROM citations") == [
        ("made-up/sheet", "https://example.org/sheet", None, "2026-11-30", "read")
    ]


def test_coded_table_reads_as_written(stage: Path) -> None:
    path = build_sqlite(stage, VERSION)
    columns = dictionary.table("best_fit").column_names
    rows = query(path, f"SELECT {', '.join(columns)} FROM best_fit ORDER BY gpu, n_gpus, model")
    written = best_fit().sort("gpu", "n_gpus", "model")
    for row, expected in zip(rows, written.iter_rows(), strict=True):
        assert row == tuple(
            float(f"{value:.6g}") if isinstance(value, float) else value for value in expected
        )


def test_view_has_the_columns_of_the_table(stage: Path) -> None:
    with closing(sqlite3.connect(build_sqlite(stage, VERSION))) as connection:
        described = connection.execute("SELECT * FROM best_fit").description
    assert [column[0] for column in described] == list(dictionary.table("best_fit").column_names)


def test_question_about_a_gpu_and_a_model_is_a_search(stage: Path) -> None:
    path = build_sqlite(stage, VERSION)
    plan = query(
        path, "EXPLAIN QUERY PLAN SELECT * FROM best_fit WHERE gpu = 'beta-8gb' AND model = 'maker/small'"
    )
    steps = [str(row[3]) for row in plan]
    assert not [step for step in steps if step.startswith("SCAN")]
    assert any("SEARCH r USING PRIMARY KEY (gpu_code=? AND model_code=?" in step for step in steps)


def test_meaning_and_version_are_inside(stage: Path) -> None:
    path = build_sqlite(stage, VERSION)
    assert dict(query(path, "SELECT name, value FROM dataset"))["version"] == VERSION
    units = dict(
        query(path, "SELECT name, unit FROM columns WHERE table_name = 'best_fit' ORDER BY position")
    )
    assert list(units) == list(dictionary.table("best_fit").column_names)
    assert units["total_gib"] == "GiB"
    assert {row[0] for row in query(path, "SELECT table_name FROM tables")} == {"best_fit", "citations"}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("INSERT INTO citations SELECT * FROM citations", "UNIQUE constraint failed: citations.citation"),
        ("UPDATE citations SET publisher = NULL", "NOT NULL constraint failed: citations.publisher"),
    ],
)
def test_constraints_are_kept(stage: Path, statement: str, problem: str) -> None:
    with (
        closing(sqlite3.connect(build_sqlite(stage, VERSION))) as connection,
        pytest.raises(sqlite3.IntegrityError, match=problem),
    ):
        connection.execute(statement)


def test_cubes_are_left_out(stage: Path) -> None:
    path = build_sqlite(stage, VERSION)
    assert query(path, "SELECT name FROM sqlite_master WHERE name LIKE 'estimates%'") == []


def test_same_rows_give_the_same_bytes(stage: Path) -> None:
    first = build_sqlite(stage, VERSION).read_bytes()
    parquet.write_table(best_fit().reverse(), "best_fit", stage, VERSION)
    assert build_sqlite(stage, VERSION).read_bytes() == first
    assert build_sqlite(stage, "2026.12.1").read_bytes() != first


def test_three_significant_figures_are_exact(stage: Path) -> None:
    """Every value of three significant figures from 0.001 to 9,990,000."""
    figures = [(digits, power) for power in range(-3, 5) for digits in range(1, 1000)]
    values = pl.DataFrame(
        {"context_tokens": range(1, len(figures) + 1), "total_gib": [float(f"{d}e{p}") for d, p in figures]}
    )
    frame = best_fit().head(1).drop("context_tokens", "total_gib").join(values, how="cross")
    parquet.write_table(dictionary.conform(frame, "best_fit", IDS), "best_fit", stage, VERSION)
    rows = query(build_sqlite(stage, VERSION), "SELECT total_gib FROM best_fit ORDER BY context_tokens")
    assert [row[0] for row in rows] == values.get_column("total_gib").to_list()


def test_failure_leaves_no_file(stage: Path) -> None:
    (stage / "best_fit.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    with pytest.raises(pl.exceptions.PolarsError):
        build_sqlite(stage, VERSION)
    assert not (stage / FILE_NAME).exists()
    assert not list(stage.glob(".*"))


def test_headroom_is_what_the_framework_may_use_less_the_total() -> None:
    """The view alone, over made-up tables: a share of the memory, no share, and a machine with macOS."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE gpus (gpu, memory_gib, usable_linux_gib, usable_macos_gib)")
        connection.execute("CREATE TABLE frameworks (framework, memory_policy, memory_fraction)")
        connection.execute("CREATE TABLE best_fit (gpu, framework, total_gib)")
        connection.executemany(
            "INSERT INTO gpus VALUES (?, ?, ?, ?)", [("card", 24.0, 23.5, None), ("mac", 36.0, None, 27.0)]
        )
        connection.executemany(
            "INSERT INTO frameworks VALUES (?, ?, ?)",
            [("share", "utilization_of_total", 0.5), ("unknown", "utilization_of_total", None),
             ("free", "fraction_of_free", 0.8)],
        )  # fmt: skip
        connection.executemany(
            "INSERT INTO best_fit VALUES (?, ?, ?)",
            [
                ("card", "share", 10.0),
                ("card", "unknown", 10.0),
                ("card", "free", 24.0),
                ("mac", "free", 26.5),
            ],
        )
        connection.execute(HEADROOM_VIEW)
        rows = connection.execute("SELECT usable_gib, headroom_gib FROM best_fit_headroom")
        assert sorted(rows.fetchall()) == [(12.0, 2.0), (23.5, -0.5), (23.5, 13.5), (27.0, 0.5)]
