"""What the UI says about a table comes from the dictionary and stays readable."""

from __future__ import annotations

import polars as pl

from pipeline.asset_metadata import column_schema, findings, picture, preview, table_description
from warehouse.dictionary import Column, Table

TABLE = Table(
    name="cards",
    title="Cards",
    description="All cards.",
    room="sources",
    key=("card",),
    columns=(
        Column("note", "str", "Anything.", nullable=True),
        Column("card", "str", "Its id."),
        Column("memory_gib", "f64", "Memory.", unit="GiB", exclusive_min=0, max=512),
        Column("vendor", "enum", "Who makes it.", enum=("a", "b")),
    ),
)


def test_columns_carry_unit_and_constraints() -> None:
    columns = {column.name: column for column in column_schema(TABLE).columns}
    assert columns["memory_gib"].type == "float64 [GiB]"
    assert columns["memory_gib"].constraints.other == ["more than 0", "at most 512"]
    assert columns["card"].constraints.unique
    assert not columns["card"].constraints.nullable
    assert columns["note"].constraints.nullable
    assert columns["vendor"].type == "string"
    assert columns["vendor"].constraints.other == ["one of a, b"]


def test_a_preview_begins_with_the_key_and_cannot_break_the_table() -> None:
    frame = pl.DataFrame(
        {"note": ["a|b\n" + "x" * 100], "card": ["big"], "memory_gib": [24.0], "vendor": [None]}, strict=False
    )
    head, _, row = preview(frame, TABLE).splitlines()
    assert head == "| card | note | memory_gib | vendor |"
    assert row.startswith("| big | a\\|b xxx")
    assert row.endswith("… | 24 |  |")


def test_an_empty_table_has_no_preview() -> None:
    frame = pl.DataFrame(schema=dict.fromkeys(("card", "note", "memory_gib", "vendor"), pl.String))
    assert preview(frame, TABLE) == "no rows"


def test_descriptions_pictures_and_findings_are_markdown() -> None:
    assert table_description(TABLE) == "**Cards.** All cards.\n\nOne row per `card`."
    assert picture(b"png", "plot").value == "![plot](data:image/png;base64,cG5n)"
    assert findings([("a", 1)], ["what", "rows"]).value == "| what | rows |\n| --- | --- |\n| a | 1 |"
