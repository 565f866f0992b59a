"""What the Dagster UI shows about a table: its columns, its size, some of its rows and pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import dagster as dg
import polars as pl

from warehouse.dictionary import Column, Table

PREVIEW_ROWS = 8
PREVIEW_COLUMNS = 10
_CELL_LENGTH = 40
_SHOWN_TYPES = {
    "str": "string",
    "id": "string",
    "enum": "string",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f32": "float32",
    "f64": "float64",
}


def column_schema(table: Table) -> dg.TableSchema:
    """The dictionary's columns as Dagster's table schema: type with unit, description, constraints."""
    return dg.TableSchema(columns=[_column(column, table) for column in table.columns])


def table_description(table: Table) -> str:
    """Title, what the table holds and what one row is, as markdown."""
    return f"**{table.title}.** {table.description}\n\nOne row per `{', '.join(table.key)}`."


def preview(frame: pl.DataFrame | pl.LazyFrame, table: Table, rows: int = PREVIEW_ROWS) -> str:
    """The first rows as a markdown table: the key and the next columns, long cells cut."""
    names = list(dict.fromkeys([*table.key, *table.column_names]))[: max(PREVIEW_COLUMNS, len(table.key))]
    found = frame.lazy().select(names).head(rows).collect()
    if found.is_empty():
        return "no rows"
    head = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    return "\n".join(head + [_row(row) for row in found.iter_rows()])


def picture(png: bytes, alt: str) -> dg.MarkdownMetadataValue:
    """A PNG as markdown that carries its own bytes, so that it needs no server and no file."""
    return dg.MetadataValue.md(f"![{alt}](data:image/png;base64,{base64.b64encode(png).decode('ascii')})")


def table_metadata(
    table: Table, frame: pl.DataFrame | pl.LazyFrame, rows: int, n_bytes: int
) -> dict[str, Any]:
    """The metadata of one materialization of a small table: rows, bytes and a preview."""
    return {
        "dagster/row_count": rows,
        "size_bytes": n_bytes,
        "preview": dg.MetadataValue.md(preview(frame, table)),
    }


def findings(rows: Sequence[Sequence[object]], header: Sequence[str]) -> dg.MarkdownMetadataValue:
    """A markdown table of what a check found."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header), *(_row(row) for row in rows)]
    return dg.MetadataValue.md("\n".join(lines))


def _column(column: Column, table: Table) -> dg.TableColumn:
    other = [f"references {column.references}"] if column.references else []
    if column.enum:
        other.append("one of " + ", ".join(column.enum))
    if column.min is not None:
        other.append(f"at least {column.min:g}")
    if column.exclusive_min is not None:
        other.append(f"more than {column.exclusive_min:g}")
    if column.max is not None:
        other.append(f"at most {column.max:g}")
    return dg.TableColumn(
        name=column.name,
        type=f"{_shown_type(column)} [{column.unit}]" if column.unit else _shown_type(column),
        description=column.description,
        constraints=dg.TableColumnConstraints(
            nullable=column.nullable, unique=table.key == (column.name,), other=other
        ),
    )


def _shown_type(column: Column) -> str:
    """The type in the words for which the UI has pictures."""
    return _SHOWN_TYPES.get(column.dtype, column.dtype)


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:,.4g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= _CELL_LENGTH else text[: _CELL_LENGTH - 1] + "…"
