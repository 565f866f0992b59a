"""The column dictionary: what every published table holds, read from `dictionary/<table>.toml`.

Everything that describes a column (polars schema, checks, file comments, the data dictionary) is taken from
here. How files are written does not belong here.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

FOLDER = Path(__file__).with_suffix("")
ROOMS = ("sources", "factors", "cubes", "evidence", "release")
CUBE_ROOM = "cubes"

_POLARS_TYPES: dict[str, pl.DataType] = {
    "str": pl.String(),
    "id": pl.String(),
    "bool": pl.Boolean(),
    "i16": pl.Int16(),
    "i32": pl.Int32(),
    "i64": pl.Int64(),
    "f32": pl.Float32(),
    "f64": pl.Float64(),
    "date": pl.Date(),
}
DTYPES = (*_POLARS_TYPES, "enum")
_NUMBERS = ("i16", "i32", "i64", "f32", "f64")
_FLOATS = ("f32", "f64")
_TABLE_FIELDS = {"table": str, "title": str, "description": str, "room": str, "key": list, "column": list}
_COLUMN_FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "dtype": (str,),
    "description": (str,),
    "unit": (str,),
    "nullable": (bool,),
    "enum": (list,),
    "min": (int, float),
    "max": (int, float),
    "exclusive_min": (int, float),
    "references": (str,),
    "enum_of": (str,),
    "null_where": (dict,),
}
_EXAMPLES = 3

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


class DictionaryError(Exception):
    """A dictionary file says something that cannot be; the message names the file and every fault in it."""

    def __init__(self, name: str, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__(f"{name}: " + "; ".join(faults))


@dataclass(frozen=True)
class Column:
    """One column: its type, unit, meaning and what its values may be.

    `references` (`table.column`) is a foreign key. dtype `id` is an open set of names: text in small tables,
    a polars Enum of the referenced column's values in the cubes (its `enum_of` is its reference too).
    `null_where` = {other column: value} means: empty exactly where the other column has that value.
    """

    name: str
    dtype: str
    description: str
    unit: str = ""
    nullable: bool = False
    enum: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    exclusive_min: float | None = None
    references: str | None = None
    null_where: tuple[tuple[str, str], ...] = ()

    @property
    def polars_type(self) -> pl.DataType:
        """The polars type in a small table."""
        return pl.Enum(self.enum) if self.dtype == "enum" else _POLARS_TYPES[self.dtype]


@dataclass(frozen=True)
class Table:
    """One published table: asset name = table name = file name. Its rows are one per `key`."""

    name: str
    title: str
    description: str
    room: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def is_cube(self) -> bool:
        """Whether it is written as one Parquet file per gpu instead of one file."""
        return self.room == CUBE_ROOM

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of its columns in the published order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of that name; KeyError when there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name!r}")


@dataclass(frozen=True)
class Violation:
    """One broken promise of the dictionary: which rule, in how many rows, and a few values that break it."""

    table: str
    column: str
    rule: str
    count: int
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = f" (such as {', '.join(self.examples)})" if self.examples else ""
        return f"{self.table}.{self.column}: {self.rule} in {self.count} row(s){shown}"


def table(name: str) -> Table:
    """The table of that name. KeyError lists the known names; DictionaryError when its file is wrong."""
    if name not in table_names():
        raise KeyError(f"no table {name!r} in the dictionary; there are: {', '.join(table_names())}")
    return _load_cached(FOLDER / f"{name}.toml")


def table_names() -> tuple[str, ...]:
    """The names of all tables, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def tables() -> dict[str, Table]:
    """All tables by name, sorted. Raises DictionaryError also when a foreign key leads nowhere."""
    found = {name: table(name) for name in table_names()}
    check_references(found)
    return found


def load_table(path: Path) -> Table:
    """Read one dictionary file strictly; all faults of the file are in the DictionaryError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DictionaryError(path.name, [f"cannot be read: {error}"]) from error
    faults = _table_faults(document, path.stem)
    if faults:
        raise DictionaryError(path.name, faults)
    return Table(
        name=document["table"],
        title=document["title"],
        description=document["description"],
        room=document["room"],
        key=tuple(document["key"]),
        columns=tuple(_column(record) for record in document["column"]),
    )


def check_references(found: Mapping[str, Table]) -> None:
    """Every foreign key must lead to a column of a known table, else DictionaryError."""
    faults = [
        f"{one.name}.{column.name} references {column.references}, which does not exist"
        for one in found.values()
        for column in one.columns
        if column.references and not _exists(column.references, found)
    ]
    if faults:
        raise DictionaryError("dictionary", faults)


def polars_schema(name: str) -> dict[str, pl.DataType]:
    """Column name -> polars type of a table, in the published order; `id` columns are text here."""
    return {column.name: column.polars_type for column in table(name).columns}


def cube_schema(name: str, ids: Mapping[str, Sequence[str]]) -> dict[str, pl.DataType]:
    """As `polars_schema`, with `id` columns as Enum of the values `ids` holds under their reference.

    `ids` is keyed by reference (`{"gpus.gpu": [...]}`): columns with one reference share one list. The values
    are sorted, so that neither row order nor bytes depend on how the caller found them, and the order of the
    Enum is the order of the text. A reference that `ids` does not name raises KeyError.
    """
    return {
        column.name: pl.Enum(sorted(set(ids[column.references])))
        if column.dtype == "id" and column.references
        else column.polars_type
        for column in table(name).columns
    }


def conform(frame: Frame, name: str, ids: Mapping[str, Sequence[str]] | None = None) -> Frame:
    """The table's columns in order and in its types (`cube_schema` when `ids` is given); others are dropped.

    Without `ids` an id column that is an Enum already stays one: texts cost too much in millions of rows.

    Raises ValueError naming the missing columns; casting a value that does not fit raises polars' own error.
    """
    schema = polars_schema(name) if ids is None else cube_schema(name, ids)
    present = frame.collect_schema()
    missing = [column for column in schema if column not in present]
    if missing:
        raise ValueError(f"{name}: missing column(s) {', '.join(missing)}")
    if ids is None:
        coded = [column.name for column in table(name).columns if column.dtype == "id"]
        schema |= {column: present[column] for column in coded if isinstance(present[column], pl.Enum)}
    return frame.select(pl.col(column).cast(dtype) for column, dtype in schema.items())


def violations(
    frame: pl.DataFrame | pl.LazyFrame, name: str, others: Mapping[str, pl.DataFrame] | None = None
) -> list[Violation]:
    """Everything in `frame` that the dictionary does not allow; an empty list when it is sound.

    Checked: columns and their order, types, nulls, `null_where`, enum values, ranges, NaN and infinities,
    uniqueness of the key, and foreign keys into those tables that `others` holds (by table name).
    """
    return violations_of(frame, table(name), others)


def violations_of(
    frame: pl.DataFrame | pl.LazyFrame, one: Table, others: Mapping[str, pl.DataFrame] | None = None
) -> list[Violation]:
    """As `violations`, for a table that need not be in the dictionary."""
    lazy = frame.lazy()
    found = schema_violations(lazy, one)
    if found:
        return found  # the rules below need the columns
    schema = lazy.collect_schema()
    rules = [
        (column.name, rule, breach)
        for column in one.columns
        for rule, breach in _rules(column, schema[column.name], others or {})
    ]
    counts = lazy.select(breach.sum().alias(str(at)) for at, (_, _, breach) in enumerate(rules)).collect(
        engine="streaming"
    )
    for at, (column_name, rule, breach) in enumerate(rules):
        count = counts.item(0, str(at)) or 0
        if count:
            found.append(Violation(one.name, column_name, rule, count, _examples(lazy, breach, column_name)))
    return found + _key_violations(lazy, one)


def schema_violations(frame: pl.DataFrame | pl.LazyFrame, one: Table) -> list[Violation]:
    """Columns missing, unknown, out of order or of another type; no row is looked at (count is 0)."""
    schema = frame.collect_schema()
    missing = [
        Violation(one.name, name, "column is missing", 0) for name in one.column_names if name not in schema
    ]
    unknown = [
        Violation(one.name, name, "column is not in the dictionary", 0)
        for name in schema
        if name not in one.column_names
    ]
    if missing or unknown:
        return missing + unknown
    if tuple(schema) != one.column_names:
        return [Violation(one.name, "*", f"columns must be in this order: {', '.join(one.column_names)}", 0)]
    return [
        Violation(one.name, column.name, f"must have type {column.dtype}, has {schema[column.name]}", 0)
        for column in one.columns
        if not _has_type(schema[column.name], column)
    ]


def _rules(
    column: Column, dtype: pl.DataType, others: Mapping[str, pl.DataFrame]
) -> list[tuple[str, pl.Expr]]:
    """(rule in words, expression that is true where it is broken) for each rule of the column."""
    value = pl.col(column.name)
    rules: list[tuple[str, pl.Expr]] = []
    if not column.nullable:
        rules.append(("must not be empty", value.is_null()))
    for other, state in column.null_where:
        at_state = (pl.col(other) == state).fill_null(
            False
        )  # an Enum is compared by its code: no texts are made
        rules.append((f"must be empty exactly where {other} is {state}", value.is_null() != at_state))
    if column.enum:
        rules += _membership(value, dtype, column.enum, f"must be one of {', '.join(column.enum)}")
    if column.dtype in _FLOATS:
        rules.append(("must be finite", ~value.is_finite()))
    if column.min is not None:
        rules.append((f"must be at least {column.min:g}", value < column.min))
    if column.exclusive_min is not None:
        rules.append((f"must be more than {column.exclusive_min:g}", value <= column.exclusive_min))
    if column.max is not None:
        rules.append((f"must be at most {column.max:g}", value > column.max))
    if column.references:
        target, target_column = column.references.split(".")
        if target in others:
            known = others[target].get_column(target_column).cast(pl.String).drop_nulls().unique().to_list()
            rules += _membership(value, dtype, known, f"must exist in {column.references}")
    return rules


def _membership(
    value: pl.Expr, dtype: pl.DataType, allowed: Sequence[str], rule: str
) -> list[tuple[str, pl.Expr]]:
    """No rule is needed where the type itself allows nothing else: this spares the cubes most of the work."""
    if isinstance(dtype, pl.Enum) and set(dtype.categories) <= set(allowed):
        return []
    return [(rule, ~value.cast(pl.String).is_in(list(allowed)))]


def _has_type(dtype: pl.DataType, column: Column) -> bool:
    if column.dtype in ("id", "enum"):
        return isinstance(dtype, pl.Enum | pl.String)
    return dtype == column.polars_type


def _key_violations(lazy: pl.LazyFrame, one: Table) -> list[Violation]:
    if lazy.select(rises_by(one.key).all()).collect(engine="streaming").item():
        return []  # strictly rising keys are unique, and this is told in one pass
    repeated = (
        lazy.group_by(one.key)
        .len("rows")
        .filter(pl.col("rows") > 1)
        .sort(one.key)
        .collect(engine="streaming")
    )
    if repeated.is_empty():
        return []
    examples = tuple(
        " / ".join(str(value) for value in row[:-1]) for row in repeated.head(_EXAMPLES).iter_rows()
    )
    extra = int(repeated.get_column("rows").sum()) - repeated.height
    return [Violation(one.name, ",".join(one.key), "key must be unique", extra, examples)]


def rises_by(key: Sequence[str]) -> pl.Expr:
    """True in every row whose key is above that of the row before it, columns compared from first to last.

    Enums are compared by their codes, which follow the order of their values. The first row is always true.
    """
    rises: pl.Expr = pl.lit(False)
    for name in reversed(key):
        value = pl.col(name)
        before = value.shift(1)
        rises = (before < value) | ((before == value) & rises)
    return rises.fill_null(True)


def _examples(lazy: pl.LazyFrame, breach: pl.Expr, column: str) -> tuple[str, ...]:
    values = lazy.filter(breach).select(column).head(_EXAMPLES).collect().get_column(column)
    return tuple(dict.fromkeys(str(value) for value in values))


@cache
def _load_cached(path: Path) -> Table:
    return load_table(path)


def _exists(reference: str, found: Mapping[str, Table]) -> bool:
    target, column = reference.split(".")
    return target in found and column in found[target].column_names


def _column(record: Mapping[str, Any]) -> Column:
    fields = {
        **record,
        "enum": tuple(record.get("enum", ())),
        "null_where": tuple(record.get("null_where", {}).items()),
    }
    reference = fields.pop("enum_of", None)
    return Column(**fields) if reference is None else Column(**fields, references=reference)


def _table_faults(document: Mapping[str, Any], stem: str) -> list[str]:
    faults = [f"unknown key {name!r}" for name in document if name not in _TABLE_FIELDS]
    for name, kind in _TABLE_FIELDS.items():
        if not isinstance(document.get(name), kind) or not document[name]:
            faults.append(f"{name} must be a {'non-empty list' if kind is list else 'text'}")
    if faults:
        return faults
    if document["table"] != stem:
        faults.append(f"table is {document['table']!r}, the file is named {stem!r}")
    if document["room"] not in ROOMS:
        faults.append(f"room {document['room']!r} must be one of {', '.join(ROOMS)}")
    for record in document["column"]:
        faults += _column_faults(record)
    names = [record.get("name") for record in document["column"]]
    faults += [f"column {name!r} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    faults += [f"key {name!r} is not a column" for name in document["key"] if name not in names]
    if len(set(document["key"])) != len(document["key"]):
        faults.append("key names a column twice")
    for record in document["column"]:
        if record.get("nullable") and record.get("name") in document["key"]:
            faults.append(f"{record['name']}: a key column cannot be nullable")
        faults += [f"{record.get('name')}: null_where names {other!r}, which is not a column"
                   for other in record.get("null_where", {}) if other not in names]  # fmt: skip
    return faults


def _column_faults(record: Mapping[str, Any]) -> list[str]:
    name, dtype = record.get("name"), record.get("dtype")
    faults = [f"unknown key {field!r}" for field in record if field not in _COLUMN_FIELDS]
    for field, kinds in _COLUMN_FIELDS.items():
        if field in record and (
            not isinstance(record[field], kinds) or (isinstance(record[field], bool) and bool not in kinds)
        ):
            faults.append(f"{field} has the wrong type")
    faults += [f"{field} is missing" for field in ("name", "dtype", "description") if not record.get(field)]
    if faults:
        return [f"column {name}: {fault}" for fault in faults]
    if dtype not in DTYPES:
        faults.append(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    faults += _enum_faults(record) + _range_faults(record)
    for field in ("references", "enum_of"):
        if field in record and record[field].count(".") != 1:
            faults.append(f"{field} must be written table.column")
    if record.get("null_where") is not None and (
        len(record["null_where"]) != 1 or not record.get("nullable")
    ):
        faults.append("null_where needs one column and nullable = true")
    return [f"column {name}: {fault}" for fault in faults]


def _enum_faults(record: Mapping[str, Any]) -> list[str]:
    faults, values = [], record.get("enum", [])
    if (record["dtype"] == "enum") != bool(values):
        faults.append("dtype enum and a list of values in enum go together")
    if any(not isinstance(value, str) or not value for value in values) or len(set(values)) != len(values):
        faults.append("enum must hold different, non-empty texts")
    if (record["dtype"] == "id") != ("enum_of" in record):
        faults.append("dtype id and enum_of go together")
    if "enum_of" in record and "references" in record:
        faults.append("enum_of is a reference already")
    return faults


def _range_faults(record: Mapping[str, Any]) -> list[str]:
    bounds = {field: record[field] for field in ("min", "max", "exclusive_min") if field in record}
    if bounds and record["dtype"] not in _NUMBERS:
        return ["only numbers have a range"]
    if any(not math.isfinite(bound) for bound in bounds.values()):
        return ["a range must be finite"]
    if "min" in bounds and "exclusive_min" in bounds:
        return ["min and exclusive_min cannot both be given"]
    low = bounds.get("min", bounds.get("exclusive_min"))
    if low is not None and "max" in bounds and low > bounds["max"]:
        return [f"min {low} is above max {bounds['max']}"]
    return []
