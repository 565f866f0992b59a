"""What to change where it does not fit: another cache type, another quant, or more GPUs.

Only one thing is changed at a time, and only to what the cube has a row for: what fits is looked up among the
GPU's own rows. Memory does not depend on the GPU, so the order in which rows would be tried is worked out
once for all GPUs that run the same recipes (`candidates`); one GPU then only looks for the nearest that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

CHANGES = ("kv_dtype", "quant", "n_gpus")  # in order of preference, least loss first
CHANGE = pl.Enum([*CHANGES, "nothing"])
COLUMNS = ("fits_with", *(f"fits_with_{name}" for name in CHANGES))
_KEY = ("model", "framework", "backend", "quant", "kv_dtype", "n_gpus", "context_tokens")
_BITS = {"n_gpus": 8, "context_tokens": 24}  # of a number within one integer; ids take what their Enum needs

Candidates = Mapping[str, pl.DataFrame]


def candidates(recipes: pl.DataFrame) -> Candidates:
    """For each of `CHANGES`, the rows that differ in that column alone, next to each other.

    `recipes`: the columns of the cube's key (ids as Enums or text) and total_gib. Each frame has, in that
    order, `row` (its place in `recipes`), `first` (where its group starts), `value` (of the column that
    changes, ids by their code) and `place` (where the row of that number lies). Within a group the total
    rises, or for n_gpus the count falls.
    """
    coded = _coded(recipes)
    return {name: _candidates(coded, name) for name in CHANGES}


def _coded(recipes: pl.DataFrame) -> pl.DataFrame:
    """The ids as Enums: those that are text take their own values, sorted."""
    text = [name for name in _KEY if recipes.schema[name] == pl.String]
    return recipes.with_columns(
        pl.col(name).cast(pl.Enum(recipes.get_column(name).unique().sort())) for name in text
    )


def _candidates(recipes: pl.DataFrame, changed: str) -> pl.DataFrame:
    tried = -pl.col(changed) if changed == "n_gpus" else pl.col("total_gib")
    group = pl.col("group")
    ordered = (
        recipes.select(
            group=_packed(recipes, [name for name in _KEY if name != changed]),
            tried=tried,
            value=_code(recipes, changed),
        )
        .with_row_index("row")
        .sort("group", "tried", "row")
        .with_row_index("at")
        .with_columns(first=pl.when((group != group.shift(1)).fill_null(True)).then("at").forward_fill())
    )
    place = ordered.select(pl.col("at").sort_by("row").alias("place"))
    return pl.concat([ordered.select("row", "first", "value"), place], how="horizontal")


def _packed(recipes: pl.DataFrame, names: Sequence[str]) -> pl.Expr:
    """The columns as one integer: ids by their codes, counts and contexts by their value."""
    packed: pl.Expr = pl.lit(0, dtype=pl.UInt64)
    for name in names:
        kind = recipes.schema[name]
        bits = len(kind.categories).bit_length() if isinstance(kind, pl.Enum) else _BITS[name]
        packed = packed * (1 << bits) + _code(recipes, name).cast(pl.UInt64)
    return packed


def _code(recipes: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name).to_physical() if isinstance(recipes.schema[name], pl.Enum) else pl.col(name)


def alternatives(recipes: pl.DataFrame, found: Candidates, fits: pl.Series) -> pl.DataFrame:
    """Row by row, what would make a row fit: `COLUMNS`, all null where it fits already.

    `recipes`: one GPU's rows; `found`: their `candidates`; `fits`: whether each row fits. fits_with_kv_dtype
    and fits_with_quant: the largest cache type or quant of the same framework that fits, fits_with_n_gpus:
    the next number of GPUs that does, each with everything else as it is. fits_with: the first of these that
    there is, in the order of `CHANGES`, else `nothing`.
    """
    kinds = _coded(recipes.select(_KEY)).schema
    values = pl.DataFrame(
        [_nearest_that_fits(found[name], fits).alias(f"fits_with_{name}") for name in CHANGES]
    )
    first: pl.Expr = pl.lit(len(CHANGES))
    for at, name in reversed(list(enumerate(CHANGES))):
        first = pl.when(pl.col(f"fits_with_{name}").is_not_null()).then(at).otherwise(first)
    return values.select(
        pl.when(fits.not_()).then(first).cast(pl.UInt8).cat.to(CHANGE).alias("fits_with"),
        *[pl.col(f"fits_with_{name}").cat.to(kinds[name]) for name in ("kv_dtype", "quant")],
        pl.col("fits_with_n_gpus").cast(pl.Int16),
    )


def _nearest_that_fits(tried: pl.DataFrame, fits: pl.Series) -> pl.Series:
    """The value of the nearest row before each row of its group that fits; null where it fits itself."""
    at = pl.int_range(pl.len(), dtype=pl.UInt32)
    nearest = tried.lazy().with_columns(fits=fits.gather(tried.get_column("row"))).with_columns(
        at=pl.when("fits").then(at).forward_fill()
    )  # fmt: skip
    in_group = ~pl.col("fits") & (pl.col("at") >= pl.col("first")).fill_null(False)
    value = pl.when(in_group).then(pl.col("value").gather(pl.col("at").fill_null(0)))
    return nearest.select(value.gather(pl.col("place"))).collect().to_series()
