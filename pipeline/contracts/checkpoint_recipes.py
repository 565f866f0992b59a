"""Reads the checkpoint recipes of `sources/quants/`: what a matrix takes in a layout, and which tensors of a
checkpoint get which layout. Applying them to the tensors of a model is the estimator's.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field

from estimator.checkpoint_bytes import OWN, RECIPE_CONDITIONS, RECIPE_FLAGS, SECOND
from estimator.tensor_census import PARTS, STORAGES
from pipeline.contracts.architectures.traits import all_traits
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import Count, PositiveInt, PositiveShort, StrictRow, Text
from warehouse.dictionary import polars_schema

LAYOUTS_FILE = "quants/checkpoint_layouts.csv"
RECIPES_FILE = "quants/checkpoint_recipes.csv"
_NAMES = {"part": PARTS, "storage": STORAGES}


class Layout(StrictRow):
    """A row of `checkpoint_layouts.csv`. One with a recipe is a format that whole files come in."""

    layout: Text
    recipe: Text | None = None
    second_layout: Text | None = None
    bits: Annotated[float, Field(gt=0, le=32)]
    group_size: PositiveInt | None = None
    block_rows: PositiveInt
    scale_bytes: Count
    zero_bits: Count
    outer_group_size: PositiveInt | None = None
    outer_scale_bytes: Count
    row_bytes: Count
    column_bytes: Count
    matrix_bytes: Count
    row_multiple: PositiveInt | None = None
    padded_row: PositiveInt | None = None
    padded_rows: PositiveInt | None = None
    citation: Text


class RecipeRow(StrictRow):
    """A row of `checkpoint_recipes.csv`: the conditions that are given must all hold; lists are parted by
    spaces.
    """

    recipe: Text
    order: PositiveShort
    tensor: Text | None = None
    part: Text | None = None
    storage: Text | None = None
    model_type: Text | None = None
    with_experts: bool | None = None
    is_mtp: bool | None = None
    layers: Literal["all", "more"]
    layout: Text
    citation: Text


def read_checkpoint_recipes(
    root: Path, log: FaultLog, use: CitationUse, quants: Collection[str]
) -> dict[str, pl.DataFrame]:
    """The tables `checkpoint_layouts` and `checkpoint_recipes`; faults go to `log`, citations to `use`.

    `quants` are the known format ids: a layout with a recipe is one of them. Every recipe ends in a row
    without conditions whose layout fits every tensor.
    """
    layouts = _read(root / LAYOUTS_FILE, Layout, ("layout",), log, use)
    recipes = _read(root / RECIPES_FILE, RecipeRow, ("recipe", "order"), log, use)
    _check_layouts(root / LAYOUTS_FILE, layouts, {row["recipe"] for row in recipes}, quants, log)
    _check_recipes(root / RECIPES_FILE, recipes, layouts, log)
    return {
        "checkpoint_layouts": _frame("checkpoint_layouts", layouts),
        "checkpoint_recipes": _frame("checkpoint_recipes", recipes),
    }


def _check_layouts(
    path: Path,
    layouts: list[dict[str, Any]],
    recipes: Collection[str],
    quants: Collection[str],
    log: FaultLog,
) -> None:
    known = {row["layout"] for row in layouts}
    for row in layouts:
        if row["recipe"] is not None and row["layout"] not in quants:
            log.add(path, "layout", row["layout"], unknown_name(row["layout"], quants, "quant"))
        if row["recipe"] is not None and row["recipe"] not in recipes:
            log.add(path, "recipe", row["recipe"], unknown_name(row["recipe"], recipes, "recipe"))
        if row["second_layout"] is not None and row["second_layout"] not in known:
            log.add(path, "second_layout", row["second_layout"],
                    unknown_name(row["second_layout"], known, "layout"))  # fmt: skip
        if (row["outer_group_size"] is None) != (row["outer_scale_bytes"] == 0):
            log.add(path, "outer_group_size", row["layout"], "is given with outer_scale_bytes, not alone")


def _check_recipes(
    path: Path, recipes: list[dict[str, Any]], layouts: list[dict[str, Any]], log: FaultLog
) -> None:
    known = {row["layout"]: row for row in layouts}
    with_second = {row["recipe"]: row["second_layout"] is not None for row in layouts if row["recipe"]}
    for row in recipes:
        _check_names(path, row, log)
        choices = (OWN, SECOND, *known)
        if row["layout"] not in choices:
            log.add(path, "layout", row["layout"], unknown_name(row["layout"], choices, "layout"))
        if row["layout"] == SECOND and not with_second.get(row["recipe"], True):
            log.add(path, "layout", SECOND, f"a format of the recipe {row['recipe']} has no second_layout")
    last = {row["recipe"]: row for row in recipes}
    for recipe, row in last.items():
        given = [name for name in (*RECIPE_CONDITIONS, *RECIPE_FLAGS) if row[name] is not None]
        fits = all(
            one["row_multiple"] is None
            for one in layouts
            if (one["recipe"] == recipe if row["layout"] == OWN else one["layout"] == row["layout"])
        )
        if given or row["layers"] != "all" or row["layout"] == SECOND or not fits:
            log.add(path, "recipe", recipe, "needs a last row without a condition whose layout always fits")


def _check_names(path: Path, row: dict[str, Any], log: FaultLog) -> None:
    types = set(all_traits())
    for column, allowed in (*_NAMES.items(), ("model_type", types)):
        for name in (row[column] or "").split():
            if name not in allowed:
                log.add(path, column, name, unknown_name(name, allowed, column))


def _read(
    path: Path, model: type[StrictRow], key: tuple[str, ...], log: FaultLog, use: CitationUse
) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line, record in read_rows(path, model, log):
        row = record.model_dump()
        keyed = tuple(row[name] for name in key)
        if keyed in rows:
            log.add(path, key[-1], row[key[-1]], "is given twice", line)
            continue
        use.note(row["citation"], path, line)
        rows[keyed] = row
    return [rows[keyed] for keyed in sorted(rows)]


def _frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_schema(table)
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)
