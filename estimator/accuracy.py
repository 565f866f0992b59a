"""How far estimates are from measurements, by metric and group. Reads residuals, fits nothing. Pure
polars.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from estimator.residuals import ABOVE_BOUND

CELL = (
    "metric",
    "gpu",
    "n_gpus",
    "model",
    "framework",
    "backend",
    "quant",
    "kv_dtype",
    "depth_tokens",
    "concurrency",
)
# The coefficients were fitted on these very anchors (sources/coefficients), so nothing here is held out.
SPLIT = "in_sample"
DECIMALS = 4


def accuracy(
    residuals: pl.LazyFrame, gpus: pl.LazyFrame, models: pl.LazyFrame, quants: pl.LazyFrame
) -> pl.LazyFrame:
    """The table `accuracy`: errors over accepted cells, for everything and by engine, backend, vendor and so
    on.

    A cell is one setting; its ratio is the median over its anchors, so repeats of one source do not count
    twice. `residuals`: the table `anchor_residuals`; the others give family, vendor, is_moe and quant_class.
    """
    cells = _cells(residuals).join(gpus.select("gpu", "family", "vendor"), on="gpu").join(
        models.select("model", kind=pl.when("is_moe").then(pl.lit("moe")).otherwise(pl.lit("dense"))),
        on="model",
    ).join(quants.select("quant", "quant_class"), on="quant")  # fmt: skip
    slices: Mapping[str, pl.Expr] = {
        "all": pl.lit("all"),
        "framework": pl.col("framework"),
        "backend": pl.col("backend").cast(pl.String),
        "gpu_vendor": pl.col("vendor").cast(pl.String),
        "gpu_family": pl.col("family").cast(pl.String),
        "quant_class": pl.col("quant_class").cast(pl.String),
        "model_kind": pl.col("kind"),
        "basis": pl.col("basis").cast(pl.String),
        "depth": _depth_band(),
        "gpu_count": pl.when(pl.col("n_gpus") == 1).then(pl.lit("one")).otherwise(pl.lit("several")),
    }
    return pl.concat([_slice(cells, name, value) for name, value in slices.items()]).sort(
        "metric", "split", "slice", "value"
    )


def _cells(residuals: pl.LazyFrame) -> pl.LazyFrame:
    """Accepted cells, and those flagged for nothing but the bound: these count for `is_above_bound` alone."""
    accepted = pl.col("state").cast(pl.String) == "accepted"
    sound = accepted | (pl.col("reason") == ABOVE_BOUND).fill_null(False)
    cells = residuals.filter(sound, pl.col("ratio").is_not_null()).group_by(CELL)
    return cells.agg(
        pl.col("ratio").filter(accepted).median(),
        n_anchors=accepted.sum(),
        is_within_interval=pl.col("is_within_interval").filter(accepted).mean(),
        is_above_bound=pl.col("is_above_bound").mean(),
        basis=pl.col("basis").cast(pl.String).min(),
    )


def _slice(cells: pl.LazyFrame, name: str, value: pl.Expr) -> pl.LazyFrame:
    error = (pl.col("ratio") - 1).abs()
    return (
        cells.with_columns(value=value, error=error)
        .group_by("metric", "value")
        .agg(
            n_anchors=pl.col("n_anchors").sum().cast(pl.Int32),
            n_cells=pl.col("ratio").count().cast(pl.Int32),
            n_devices=pl.col("gpu").n_unique().cast(pl.Int32),
            median_ratio=pl.col("ratio").median().round(DECIMALS),
            median_absolute_error_percent=(100 * pl.col("error").median()).round(DECIMALS - 2),
            p90_absolute_error_percent=(100 * pl.col("error").quantile(0.9, "linear")).round(DECIMALS - 2),
            # sorted: a float sum in arrival order would differ from run to run
            within_interval_percent=(100 * pl.col("is_within_interval").sort().mean()).round(DECIMALS - 2),
            above_bound_percent=(100 * pl.col("is_above_bound").sort().mean()).round(DECIMALS - 2),
        )
        .filter(pl.col("n_cells") > 0)
        .with_columns(split=pl.lit(SPLIT), slice=pl.lit(name))
    )


def _depth_band() -> pl.Expr:
    depth = pl.col("depth_tokens")
    return (
        pl.when(depth < 1500)
        .then(pl.lit("under 1,500"))
        .when(depth < 6000)
        .then(pl.lit("1,500 to 6,000"))
        .otherwise(pl.lit("6,000 and more"))
    )
