"""How far estimated file sizes are from published ones, by group. Reads residuals, fits nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

DECIMALS: Final = 5


def file_size_accuracy(residuals: pl.LazyFrame) -> pl.LazyFrame:
    """The table `file_size_accuracy`: median, 95th percentile and largest error in percent, and the share
    within rounding, by kind of size, with the publisher, format, basis or explanation beside.

    `residuals`: the table file_size_residuals. `row_set`: judged; with_basis: also the files that headers and
    densities were read off; explained: rows that say nothing about the rules.
    """
    judged = pl.col("is_judged")
    bases = pl.col("is_basis") & pl.col("explanation").is_null() & pl.col("estimated_bytes").is_not_null()
    sets = {
        "judged": residuals.filter(judged),
        "with_basis": residuals.filter(judged | bases),
        "explained": residuals.filter(pl.col("explanation").is_not_null()),
    }
    family = pl.col("quant").str.extract(r"^([^/]+)/")
    kind = pl.col("kind")
    slices: Mapping[str, pl.Expr] = {
        "kind": kind,
        "kind and family": _both(kind, family),
        "kind and format": _both(kind, pl.col("quant")),
        "kind and publisher": _both(kind, pl.col("hf_repo").str.extract(r"^([^/]+)/")),
        "kind and imatrix basis": _both(kind, pl.col("imatrix_basis")),
        "kind and variant basis": _both(kind, pl.col("variant_basis")),
        "kind and metadata basis": _both(kind, pl.col("metadata_basis")),
        "kind and explanation": _both(kind, pl.col("explanation")),
    }
    return pl.concat(
        [_slice(rows, of, name, value) for of, rows in sets.items() for name, value in slices.items()]
    ).sort("row_set", "slice", "value")


def _both(kind: pl.Expr, other: pl.Expr) -> pl.Expr:
    return pl.concat_str(kind, pl.lit(": "), other.cast(pl.String).fill_null("none"))


def _slice(rows: pl.LazyFrame, of: str, name: str, value: pl.Expr) -> pl.LazyFrame:
    error = pl.col("error_percent").abs()
    return (
        rows.with_columns(value=value)
        .group_by("value")
        .agg(
            n_files=pl.len().cast(pl.Int32),
            n_models=pl.col("model").n_unique().cast(pl.Int32),
            median_absolute_error_percent=error.median().round(DECIMALS),
            p95_absolute_error_percent=error.quantile(0.95, "linear").round(DECIMALS),
            largest_absolute_error_percent=error.max().round(DECIMALS),
            within_rounding_percent=(100 * pl.col("is_within_rounding").mean()).round(2),
        )
        .with_columns(row_set=pl.lit(of), slice=pl.lit(name))
        .select("row_set", "slice", "value", pl.exclude("row_set", "slice", "value"))
    )
