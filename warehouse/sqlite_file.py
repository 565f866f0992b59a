"""Builds `tokcube.sqlite`: every small table with its constraints, the dictionary as tables, no cubes.

Written by Python's own sqlite3 (DuckDB's SQLite extension is not part of its wheel). SQLite has no column
comments, so the tables `tables` and `columns` say what everything means.

A table of many rows (`CODED_TABLES`) is stored in parts so that it stays small: gpu and model as numbers with
tables of names, the rest of its key together as one number (its setting), its other words as one more (its
recipe; few combinations exist), its measures as whole numbers (`SCALES`). A view of the table's own name puts
it together.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
from adbc_driver_sqlite import dbapi

from warehouse import dataset, parquet
from warehouse.atomic import whole_file
from warehouse.dictionary import Column, Table, table, table_names

FILE_NAME = "tokcube.sqlite"
CODED_TABLES = ("best_fit", "kv_cache", "runtime", "weights")
OMITTED_TABLES = (
    *(name for name in dataset.LARGE_TABLES if name not in CODED_TABLES),
    *dataset.PARTS_OF_WEIGHTS,
)
# What a measure is multiplied by to be stored as a whole number, by unit. Memory is published in thousandths
# of a GiB; of speeds 3 significant figures stay exact down to 0.001, and 9 in 10 need 4 bytes instead of 8.
SCALES = {"GiB": 1_000, "tok/s": 100_000}

_PAGE_BYTES = 8192  # a tenth faster to fill than 4096
_FAST_PRAGMAS = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536")
# The framework's share of the memory counts as in the verdicts; SQLite's scalar min() is null with a null.
HEADROOM_VIEW = """CREATE VIEW best_fit_headroom AS
SELECT b.*, round(u.usable_gib, 5) AS usable_gib, round(u.usable_gib - b.total_gib, 5) AS headroom_gib
FROM best_fit b JOIN (
    SELECT g.gpu, f.framework, min(coalesce(g.usable_macos_gib, g.usable_linux_gib), CASE
        WHEN f.memory_policy = 'utilization_of_total' AND f.memory_fraction IS NOT NULL
        THEN g.memory_gib * f.memory_fraction
        ELSE coalesce(g.usable_macos_gib, g.usable_linux_gib) END) AS usable_gib
    FROM gpus g JOIN frameworks f
) u ON u.gpu = b.gpu AND u.framework = b.framework"""
# Keys of a coded table that questions name; the other keys together are one code, its setting.
_NAMED_KEYS = ("gpu", "model")
_SQL_TYPES = {
    "f32": "REAL",
    "f64": "REAL",
    "i16": "INTEGER",
    "i32": "INTEGER",
    "i64": "INTEGER",
    "bool": "INTEGER",
}
_WORDS = ("str", "id", "enum")
_FLOATS = ("f32", "f64")
_WHOLE = ("i16", "i32", "i64")


def build_sqlite(folder: Path, version: str) -> Path:
    """Write `<folder>/tokcube.sqlite` from the Parquet files of the release folder, whole or not at all.

    Same rows, same bytes (for one SQLite version): fixed page size, rows in key order, no clock.
    """
    path = folder / FILE_NAME
    with whole_file(path) as partial:
        connection = sqlite3.connect(partial, isolation_level=None)
        try:
            many = _write_all(connection, folder, version)
        finally:
            connection.close()
        for name, rows in many.items():
            _insert_many(partial, name, rows)
    return path


def _write_all(connection: sqlite3.Connection, folder: Path, version: str) -> dict[str, pl.DataFrame]:
    """Everything but the rows of coded tables, which are returned by table."""
    # The file is thrown away when anything fails, so it needs no journal
    for pragma in (f"page_size = {_PAGE_BYTES}", *_FAST_PRAGMAS):
        connection.execute(f"PRAGMA {pragma}")
    present = [
        one
        for one in map(table, table_names())
        if is_in_sqlite(one) and parquet.table_files(folder, one.name)
    ]
    many: dict[str, pl.DataFrame] = {}
    connection.execute("BEGIN")
    _write_dictionary(connection, present, version)
    for one in present:
        frame = parquet.scan_table(folder, one.name)
        if one.name in CODED_TABLES:
            many[f"{one.name}_rows"] = _write_coded(connection, one, frame.collect())
        else:
            _write_plain(connection, one, frame.collect(), present)
    if {"best_fit", "gpus", "frameworks"} <= {one.name for one in present}:
        connection.execute(HEADROOM_VIEW)
    connection.execute("COMMIT")
    return many


def is_in_sqlite(one: Table) -> bool:
    """Whether a table is in the SQLite file: all but the cubes and `OMITTED_TABLES`."""
    return not one.is_cube and one.name not in OMITTED_TABLES


def _write_dictionary(connection: sqlite3.Connection, present: list[Table], version: str) -> None:
    connection.execute(
        "CREATE TABLE dataset (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID"
    )
    facts = {
        "dataset": dataset.DATASET,
        "version": version,
        "schema_version": dataset.SCHEMA_VERSION,
        "licence": dataset.LICENCE,
    }
    connection.executemany("INSERT INTO dataset VALUES (?, ?)", sorted(facts.items()))
    connection.execute(
        "CREATE TABLE tables (table_name TEXT PRIMARY KEY NOT NULL, title TEXT NOT NULL, "
        "description TEXT NOT NULL, key TEXT NOT NULL) WITHOUT ROWID"
    )
    connection.executemany(
        "INSERT INTO tables VALUES (?, ?, ?, ?)",
        [(one.name, one.title, one.description, ", ".join(one.key)) for one in present],
    )
    connection.execute(
        "CREATE TABLE columns (table_name TEXT NOT NULL REFERENCES tables, position INTEGER NOT NULL, "
        "name TEXT NOT NULL, unit TEXT NOT NULL, description TEXT NOT NULL, PRIMARY KEY (table_name, name)) "
        "WITHOUT ROWID"
    )
    connection.executemany(
        "INSERT INTO columns VALUES (?, ?, ?, ?, ?)",
        [
            (one.name, position, column.name, column.unit, column.description)
            for one in present
            for position, column in enumerate(one.columns, start=1)
        ],
    )


def _write_plain(
    connection: sqlite3.Connection, one: Table, frame: pl.DataFrame, present: list[Table]
) -> None:
    parts = [
        f"{_name(column.name)} {_sql_type(column)}{_constraints(column, present)}" for column in one.columns
    ]
    parts.append(f"PRIMARY KEY ({', '.join(_name(column) for column in one.key)})")
    connection.execute(f"CREATE TABLE {_name(one.name)} ({', '.join(parts)})")
    _insert(connection, one.name, frame.select(_sqlite_value(column) for column in one.columns))


def _write_coded(connection: sqlite3.Connection, one: Table, frame: pl.DataFrame) -> pl.DataFrame:
    """Make the tables and the view described at the top: `<table>_rows`, `<table>_<part>`, and the view.

    Returns the rows of `<table>_rows` in key order, still to be inserted.
    """
    keys = [column for column in one.columns if column.name in one.key]
    measures = [
        column for column in one.columns if column not in keys and column.dtype in (*_FLOATS, *_WHOLE)
    ]
    named = [column for column in keys if column.name in _NAMED_KEYS]
    parts = {column.name: [column] for column in named}
    parts["setting"] = [column for column in keys if column not in named]
    parts["recipe"] = [column for column in one.columns if column not in keys and column not in measures]
    codes_of_rows = []
    for part, columns in parts.items():
        names = [column.name for column in columns]
        own = frame.select(names)
        codes = own.unique().sort(names).with_row_index("code")
        _write_codes(connection, f"{one.name}_{part}", columns, codes)
        coded = own.join(codes, on=names, how="left", maintain_order="left", nulls_equal=True)
        codes_of_rows.append(coded.get_column("code").alias(f"{part}_code"))
    rows = pl.DataFrame(codes_of_rows).hstack(frame.select(_stored_measure(column) for column in measures))
    stored_key = [f"{part}_code" for part in parts if part != "recipe"]
    definitions = ", ".join(f"{_name(name)} INTEGER" for name in rows.columns)
    connection.execute(
        f"CREATE TABLE {_name(one.name + '_rows')} ({definitions}, "
        f"PRIMARY KEY ({', '.join(_name(name) for name in stored_key)})) WITHOUT ROWID"
    )
    connection.execute(_coded_view(one, parts, measures))
    return rows.sort(stored_key)


def _stored_measure(column: Column) -> pl.Expr:
    """A measure as the whole number that is stored."""
    value = pl.col(column.name)
    if column.dtype in _WHOLE:
        return value.cast(pl.Int64)
    return (value.cast(pl.Float64) * SCALES[column.unit]).round().cast(pl.Int64)


def _write_codes(
    connection: sqlite3.Connection, name: str, columns: list[Column], codes: pl.DataFrame
) -> None:
    definitions = ", ".join(f"{_name(column.name)} {_sql_type(column)}" for column in columns)
    unique = ", ".join(_name(column.name) for column in columns)
    connection.execute(
        f"CREATE TABLE {_name(name)} (code INTEGER PRIMARY KEY, {definitions}, UNIQUE ({unique}))"
    )
    _insert(connection, name, codes.select("code", *(_sqlite_value(column) for column in columns)))


def _coded_view(one: Table, parts: dict[str, list[Column]], measures: list[Column]) -> str:
    part_of = {column.name: part for part, columns in parts.items() for column in columns}
    scales = {column.name: SCALES[column.unit] for column in measures if column.dtype in _FLOATS}
    whole = {column.name for column in measures} - set(scales)

    def expression(name: str) -> str:
        if name in scales:
            return f"r.{_name(name)} / {scales[name]}.0 AS {_name(name)}"
        if name in whole:
            return f"r.{_name(name)} AS {_name(name)}"
        return f"{_name(f'{one.name}_{part_of[name]}')}.{_name(name)} AS {_name(name)}"

    selected = ", ".join(expression(name) for name in one.column_names)
    joins = " ".join(
        f"JOIN {_name(f'{one.name}_{part}')} "
        f"ON {_name(f'{one.name}_{part}')}.code = r.{_name(part + '_code')}"
        for part in parts
    )
    return f"CREATE VIEW {_name(one.name)} AS SELECT {selected} FROM {_name(one.name + '_rows')} AS r {joins}"


def _insert_many(path: Path, name: str, rows: pl.DataFrame) -> None:
    """Append millions of rows through the Arrow driver: twice as fast, as it makes no object per row."""
    with dbapi.connect(str(path), autocommit=True) as connection, connection.cursor() as cursor:
        for pragma in _FAST_PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.execute("BEGIN")
        cursor.adbc_ingest(name, rows.cast(pl.Int64).to_arrow(), mode="append")
        cursor.execute("COMMIT")


def _insert(connection: sqlite3.Connection, name: str, frame: pl.DataFrame) -> None:
    places = ", ".join("?" for _ in frame.columns)
    statement = f"INSERT INTO {_name(name)} VALUES ({places})"
    connection.executemany(statement, frame.iter_rows())


def _sqlite_value(column: Column) -> pl.Expr:
    """The column as SQLite stores it: dates as ISO text, truth as 0 and 1, 32-bit floats as they are written.

    47.8 in 32 bits is 47.7999992 in 64; through its text it stays 47.8.
    """
    value = pl.col(column.name)
    if column.dtype == "bool":
        return value.cast(pl.Int8)
    if column.dtype == "f32":
        return value.cast(pl.String).cast(pl.Float64)
    return value if column.dtype in _SQL_TYPES else value.cast(pl.String)


def _sql_type(column: Column) -> str:
    return _SQL_TYPES.get(column.dtype, "TEXT")


def _constraints(column: Column, present: list[Table]) -> str:
    words = "" if column.nullable else " NOT NULL"
    if column.references:
        target_name, target_column = column.references.split(".")
        # SQLite only accepts a reference to a column that is unique by itself
        for target in present:
            if target.name == target_name and target.key == (target_column,):
                words += f" REFERENCES {_name(target_name)}({_name(target_column)})"
    return words


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
