"""Builds `tokcube.duckdb`: every small table inside, the cubes as views over the Parquet files beside it.

The views name their files relative to the release folder, because a release is downloaded to any place.
DuckDB looks there when it is started in that folder, or after `SET file_search_path = '<release folder>'`
(tested with DuckDB 1.5 and 2.0). The table `how_to_read` and the comments of the views say so too.

DuckDB places its blocks differently from run to run, even with one thread (2.0.1, seen from 20,000 rows on).
So the same content does not give the same bytes here, as it does in the other files; compare `content_hash`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from warehouse import dataset, parquet
from warehouse.atomic import whole_file
from warehouse.dictionary import Column, Table, table, table_names
from warehouse.estimates_detail import DETAIL_VIEW, detail_columns, detail_query

FILE_NAME = "tokcube.duckdb"
STORAGE_VERSION = "v1.2.0"  # the 2.0 default cannot be opened by DuckDB 1.x nor in the browser
HOW_TO_READ = "how_to_read"

_SQL_TYPES = {
    "str": "VARCHAR",
    "id": "VARCHAR",
    "enum": "VARCHAR",
    "bool": "BOOLEAN",
    "i16": "SMALLINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
    "f32": "FLOAT",
    "f64": "DOUBLE",
    "date": "DATE",
}
_CATALOGUE = (
    "SELECT table_name, sql, comment FROM duckdb_tables() ORDER BY ALL",
    "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
    "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal ORDER BY ALL",
)
_SEARCH_PATH_HINT = (
    "Reads the Parquet files of the release folder: start DuckDB in that folder, or first run "
    "SET file_search_path = '<release folder>';"
)


def build_duckdb(folder: Path, version: str) -> Path:
    """Write `<folder>/tokcube.duckdb` from the Parquet files of the release folder, whole or not at all.

    Every dictionary table that has files there becomes a table (a cube: a view), with comments on it and on
    every column; `estimates_detail` is added when there are estimates. One thread keeps rows in key order.
    """
    path = folder / FILE_NAME
    with whole_file(path) as partial:
        try:
            _write_all(partial, folder, version)
        finally:  # a failed writing leaves its log behind
            partial.with_name(f"{partial.name}.wal").unlink(missing_ok=True)
    return path


def content_hash(folder: Path) -> str:
    """A sha256 of what the DuckDB file of a release says, however its bytes lie.

    Taken over all definitions, comments and rows. The order of rows does not count, nor do the cubes, which
    are files of their own. Comparable between files read with the same DuckDB version.
    """
    digest = hashlib.sha256()
    with open_release(folder) as connection:
        for query in _CATALOGUE:
            digest.update(repr(connection.execute(query).fetchall()).encode())
        for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall():
            rows = connection.execute(f"SELECT count(*), sum(hash(r)) FROM {_name(name)} AS r").fetchall()
            digest.update(repr((name, rows)).encode())
    return digest.hexdigest()


def open_release(folder: Path) -> duckdb.DuckDBPyConnection:
    """A read-only connection to a release's DuckDB file whose views work from any working directory."""
    connection = duckdb.connect(folder / FILE_NAME, read_only=True)
    set_search_path(connection, folder)
    return connection


def set_search_path(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Tell DuckDB where the Parquet files behind the views are. Raises ValueError for a comma in the path."""
    if "," in str(folder):
        raise ValueError(f"DuckDB cannot search {folder}: it reads a comma as the end of a path")
    connection.execute(f"SET file_search_path = {_text(str(folder.resolve()))}")


def _write_all(path: Path, folder: Path, version: str) -> None:
    present = [table(name) for name in table_names() if parquet.table_files(folder, name)]
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"ATTACH {_text(str(path))} AS release (STORAGE_VERSION '{STORAGE_VERSION}')")
        connection.execute("USE release")
        set_search_path(connection, folder)
        for one in present:
            for statement in _view_statements(one) if is_view(one) else _table_statements(one):
                connection.execute(statement)
        for statement in (*_detail_statements(present), *_how_to_read_statements(version, present)):
            connection.execute(statement)
        connection.execute("USE memory")
        connection.execute("DETACH release")  # writes everything into the file


def _table_statements(one: Table) -> Iterator[str]:
    columns = ", ".join(
        f"{_name(column.name)} {_SQL_TYPES[column.dtype]}{'' if column.nullable else ' NOT NULL'}"
        for column in one.columns
    )
    yield f"CREATE TABLE {_name(one.name)} ({columns})"
    source = f"read_parquet({_text(f'{one.name}.parquet')})"
    yield f"INSERT INTO {_name(one.name)} SELECT {_selected(one)} FROM {source}"
    yield from _comments(
        "TABLE", one.name, f"{one.title}. {one.description} Key: {', '.join(one.key)}.", one.columns
    )


def is_view(one: Table) -> bool:
    """Whether a table is read from its Parquet files instead of being copied: cubes and large tables."""
    return one.is_cube or one.name in dataset.LARGE_TABLES


def _view_statements(one: Table) -> Iterator[str]:
    if one.is_cube:
        files = f"{one.name}/gpu=*/{one.name}.parquet"
        options = ", hive_partitioning = true, hive_types_autocast = false"
    else:
        files, options = f"{one.name}.parquet", ""
    source = f"read_parquet({_text(files)}{options})"
    yield f"CREATE VIEW {_name(one.name)} AS SELECT {_selected(one)} FROM {source}"
    words = f"{one.title}. {one.description} Key: {', '.join(one.key)}. {_SEARCH_PATH_HINT}"
    yield from _comments("VIEW", one.name, words, one.columns)


def _detail_statements(present: list[Table]) -> Iterator[str]:
    known = {one.name: one for one in present}
    if "estimates" not in known:
        return
    yield f"CREATE VIEW {DETAIL_VIEW} AS {detail_query(known)}"
    words = f"The estimates with what follows from them and where it is from. {_SEARCH_PATH_HINT}"
    yield from _comments("VIEW", DETAIL_VIEW, words, detail_columns(known))


def _how_to_read_statements(version: str, present: list[Table]) -> Iterator[str]:
    views = ", ".join(one.name for one in present if is_view(one)) or "none"
    rows = [
        ("what", f"{dataset.TITLE} {version}, schema {dataset.SCHEMA_VERSION}, licence {dataset.LICENCE}."),
        ("tables", "SELECT table_name, comment FROM duckdb_tables() UNION ALL SELECT view_name, comment FROM "
         "duckdb_views() WHERE NOT internal;"),
        ("columns", "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal;"),
        ("views", f"These are views over Parquet files and not in this file: {views}. {_SEARCH_PATH_HINT}"),
        ("question", "Name the gpu in WHERE (gpu = '...'): then one file is read instead of all."),
    ]  # fmt: skip
    yield f"CREATE TABLE {HOW_TO_READ} (topic VARCHAR NOT NULL, explanation VARCHAR NOT NULL)"
    for topic, explanation in rows:
        yield f"INSERT INTO {HOW_TO_READ} VALUES ({_text(topic)}, {_text(explanation)})"
    yield f"COMMENT ON TABLE {HOW_TO_READ} IS 'Start here: what this file holds and how to ask it.'"
    yield f"COMMENT ON COLUMN {HOW_TO_READ}.topic IS 'What is explained.'"
    yield f"COMMENT ON COLUMN {HOW_TO_READ}.explanation IS 'The explanation, or a statement to run.'"


def _comments(kind: str, name: str, words: str, columns: tuple[Column, ...]) -> Iterator[str]:
    yield f"COMMENT ON {kind} {_name(name)} IS {_text(words)}"
    for column in columns:
        unit = f" [{column.unit}]" if column.unit else ""
        yield f"COMMENT ON COLUMN {_name(name)}.{_name(column.name)} IS {_text(column.description + unit)}"


def _selected(one: Table) -> str:
    """The columns by name: a view does not change meaning when a later file has more of them."""
    return ", ".join(_name(column) for column in one.column_names)


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
