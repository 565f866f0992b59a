"""The DuckDB file: opens in DuckDB 1.x, explains itself, and its views work as `how_to_read` says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.warehouse.small_stage import GPUS, VERSION, best_fit, citations
from warehouse import dictionary, parquet
from warehouse.duckdb_file import FILE_NAME, build_duckdb, content_hash, open_release
from warehouse.estimates_detail import detail_columns, detail_query

# A process of its own: the working directory is one of the process, and it must not know this project
QUESTION = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
for statement in sys.argv[2:]:
    print(connection.execute(statement).fetchall())
"""


def ask(file: Path | str, cwd: Path, *statements: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", QUESTION, str(file), *statements]
    return subprocess.run(command, cwd=cwd, env=os.environ, capture_output=True, text=True, check=False)


def test_tables_are_inside_and_equal(stage: Path) -> None:
    build_duckdb(stage, VERSION)
    with duckdb.connect(stage / FILE_NAME, read_only=True) as connection:
        inside = connection.execute("SELECT * FROM citations").fetchall()
    assert inside == citations().rows()


def test_large_table_is_a_view_over_its_parquet(stage: Path) -> None:
    build_duckdb(stage, VERSION)
    with open_release(stage) as connection:
        seen = connection.execute("SELECT * FROM best_fit").fetchall()
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    assert seen == best_fit().sort(dictionary.table("best_fit").key).rows()
    assert ("best_fit",) not in tables


def test_views_work_in_the_release_folder_and_from_elsewhere_as_documented(
    stage: Path, tmp_path: Path
) -> None:
    path = build_duckdb(stage, VERSION)
    count = f"SELECT count(*) FROM estimates WHERE gpu = '{GPUS[0]}'"
    detail = "SELECT count(*) FROM estimates_detail"
    assert ask(FILE_NAME, stage, count, detail).stdout.split() == ["[(4,)]", "[(8,)]"]

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lost = ask(path, elsewhere, count)
    assert lost.returncode != 0
    assert "No files found" in lost.stderr
    found = ask(path, elsewhere, f"SET file_search_path = '{stage}'", count, detail)
    assert found.stdout.split() == ["[]", "[(4,)]", "[(8,)]"]
    with open_release(stage) as connection:
        assert connection.execute(count).fetchall() == [(4,)]
        explained = connection.execute("SELECT explanation FROM how_to_read WHERE topic = 'views'").fetchall()
    assert "SET file_search_path = '<release folder>'" in explained[0][0]
    assert "estimates" in explained[0][0]


def test_release_that_was_moved_still_works(stage: Path, tmp_path: Path) -> None:
    build_duckdb(stage, VERSION)
    moved = stage.rename(tmp_path / "it's moved")
    with open_release(moved) as connection:
        assert connection.execute("SELECT count(*) FROM estimates").fetchall() == [(8,)]


def test_everything_has_a_comment(stage: Path) -> None:
    build_duckdb(stage, VERSION)
    with open_release(stage) as connection:
        for catalogue in ("duckdb_tables()", "duckdb_views()", "duckdb_columns()"):
            silent = f"SELECT count(*) FROM {catalogue} WHERE NOT internal AND comment IS NULL"
            assert connection.execute(silent).fetchall() == [(0,)]
        comments = dict(
            connection.execute(
                "SELECT table_name || '.' || column_name, comment FROM duckdb_columns() WHERE NOT internal"
            ).fetchall()
        )
        statements = connection.execute(
            "SELECT explanation FROM how_to_read WHERE topic IN ('tables', 'columns')"
        )
        for (statement,) in statements.fetchall():
            assert connection.execute(statement).fetchall()
    assert comments["estimates.weights_gib"].endswith("[GiB]")
    assert comments["estimates_detail.gpu_source"]


def test_file_has_the_storage_that_duckdb_1_reads(stage: Path) -> None:
    path = build_duckdb(stage, VERSION)
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' AS release (READ_ONLY)")
        tags = connection.execute(
            "SELECT tags FROM duckdb_databases() WHERE database_name = 'release'"
        ).fetchall()
    assert "v1.2.0" in tags[0][0]["storage_version"]


def test_not_null_is_kept(stage: Path) -> None:
    path = build_duckdb(stage, VERSION)
    with duckdb.connect(path) as connection, pytest.raises(duckdb.ConstraintException, match="NOT NULL"):
        connection.execute("INSERT INTO citations (citation) VALUES ('x/y')")


def test_content_hash_sees_rows_comments_and_definitions_but_not_bytes(stage: Path) -> None:
    path = build_duckdb(stage, VERSION)
    first = content_hash(stage)
    build_duckdb(stage, VERSION)
    assert content_hash(stage) == first
    seen = {first}
    for change in (
        "UPDATE citations SET title = 'Other sheet'",
        "COMMENT ON TABLE citations IS 'Other words'",
        "ALTER TABLE citations DROP COLUMN note",
        "CREATE VIEW more AS SELECT 1 AS one",
    ):
        with duckdb.connect(path) as connection:
            connection.execute(change)
        assert content_hash(stage) not in seen
        seen.add(content_hash(stage))


def test_cube_in_a_path_with_a_comma_is_refused(stage: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="comma"):
        build_duckdb(stage.rename(tmp_path / "a,b"), VERSION)
    assert not (tmp_path / "a,b" / FILE_NAME).exists()


def test_detail_adds_sources_where_there_are_citations(stage: Path) -> None:
    build_duckdb(stage, VERSION)
    with open_release(stage) as connection:
        row = connection.execute("SELECT gpu_source, quant_source FROM estimates_detail LIMIT 1").fetchall()
    assert row == [("https://example.org/sheet", "https://example.org/sheet")]


def test_detail_without_other_tables_is_the_estimates(stage: Path) -> None:
    (stage / "citations.parquet").unlink()
    (stage / "best_fit.parquet").unlink()
    build_duckdb(stage, VERSION)
    with open_release(stage) as connection:
        columns = connection.execute("SELECT * FROM estimates_detail LIMIT 0").description or []
    assert [column[0] for column in columns] == list(dictionary.table("estimates").column_names)


def test_release_without_cubes_and_large_tables_has_no_views(stage: Path) -> None:
    for name in ("estimates", "best_fit"):
        for path in parquet.table_files(stage, name):
            path.unlink()
    build_duckdb(stage, VERSION)
    with open_release(stage) as connection:
        assert connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall() == [
            (0,)
        ]


def made_up_table(name: str, *columns: str) -> dictionary.Table:
    described = tuple(dictionary.Column(column, "str", "x") for column in columns)
    return dictionary.Table(name, "x", "x", "sources", (columns[0],), described)


def test_detail_joins_room_and_command_when_there_are_gpus_and_templates(stage: Path) -> None:
    """Against made-up tables with the columns that the view asks for."""
    usable = ("usable_linux_gib", "usable_windows_gib", "usable_macos_gib")
    tables = {
        "estimates": dictionary.table("estimates"),
        "gpus": made_up_table("gpus", "gpu", "name", "memory_gib", *usable),
        "frameworks": made_up_table("frameworks", "framework", "memory_policy", "memory_fraction"),
        "launch_templates": made_up_table("launch_templates", "framework", "case", "template"),
        "kv_dtypes": made_up_table("kv_dtypes", "framework", "kv_dtype", "flag", "is_default"),
    }
    files = stage / "estimates" / "gpu=*" / "estimates.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW seen AS FROM read_parquet('{files}')")
        connection.execute("CREATE VIEW estimates AS FROM seen")
        connection.execute(
            f"""CREATE TABLE gpus AS SELECT '{GPUS[1]}' AS gpu, 'Beta' AS name, 8.0 AS memory_gib,
            7.0 AS usable_linux_gib,
            6.0 AS usable_windows_gib, NULL::DOUBLE AS usable_macos_gib"""
        )
        connection.execute(
            """CREATE TABLE frameworks AS
            SELECT 'llama.cpp' AS framework, 'utilization_of_total' AS memory_policy,
            0.75 AS memory_fraction"""
        )
        connection.execute(
            """CREATE TABLE launch_templates AS SELECT * FROM (VALUES
            ('llama.cpp', 'single_gpu', 'serve {repo}:{quant} -c {context_tokens}'),
            ('llama.cpp', 'layer_split', 'serve -sm layer --gpus {n_gpus}'),
            ('llama.cpp', 'tensor_parallel', 'serve -sm tensor')) AS t(framework, "case", template)"""
        )
        connection.execute(
            """CREATE TABLE kv_dtypes AS
            SELECT 'llama.cpp' AS framework, 'f16' AS kv_dtype, '-ctk f16' AS flag, false AS is_default"""
        )
        rows = connection.execute(
            f"""SELECT DISTINCT quant, gpu_name, headroom_gib, headroom_windows_gib, launch_command,
            kv_setting
            FROM ({detail_query(tables)}) WHERE gpu = '{GPUS[1]}' ORDER BY quant"""
        ).fetchall()
        every = connection.execute(f"SELECT count(*) FROM ({detail_query(tables)})").fetchall()
        connection.execute(
            "CREATE OR REPLACE VIEW estimates AS SELECT * REPLACE (2 AS n_gpus) FROM seen LIMIT 1"
        )
        several = connection.execute(f"SELECT launch_command FROM ({detail_query(tables)})").fetchall()
        given = connection.execute(f"{detail_query(tables)} LIMIT 0").description or []
    assert rows == [
        ("gguf/q4_k_m", "Beta", -0.28, -0.28, "serve {repo}:Q4_K_M -c 8192", "-ctk f16"),
        ("gguf/q8_0", "Beta", -0.28, -0.28, "serve {repo}:Q8_0 -c 8192", "-ctk f16"),
    ]
    assert several == [("serve -sm layer --gpus 2",)]
    assert every == [(8,)]  # an estimate of an unknown gpu stays, none is repeated
    assert [column[0] for column in given] == [column.name for column in detail_columns(tables)]
