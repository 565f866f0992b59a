"""How far memory estimates are from logs, by figure and group. Reads residuals, fits nothing. Pure polars."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

DECIMALS = 4


def memory_accuracy(residuals: pl.LazyFrame, logs: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """The table `memory_accuracy`: errors over compared figures, for all and by engine, cache type and kind
    of model.

    `residuals`: the table memory_residuals; `logs` gives the cache type, `models` is_moe.
    """
    kind = pl.when("is_moe").then(pl.lit("moe")).otherwise(pl.lit("dense"))
    rows = residuals.join(logs.select("log_id", "kv_cache_name"), on="log_id").join(
        models.select("model", model_kind=kind), on="model", how="left"
    )
    slices: Mapping[str, pl.Expr] = {
        "all": pl.lit("all"),
        "framework": pl.col("framework").cast(pl.String),
        "cache_type": pl.col("kv_cache_name"),
        "model_kind": pl.col("model_kind"),
    }
    return pl.concat([_slice(rows, name, value) for name, value in slices.items()]).sort(
        "part", "slice", "value"
    )


def _slice(rows: pl.LazyFrame, name: str, value: pl.Expr) -> pl.LazyFrame:
    error = (pl.col("ratio") - 1).abs()
    percent = 100 * pl.col("error")
    return (
        rows.with_columns(value=value.fill_null("unknown"), error=error)
        .group_by("part", "value")
        .agg(
            n_logs=pl.len().cast(pl.Int32),
            n_compared=pl.col("ratio").count().cast(pl.Int32),
            median_ratio=pl.col("ratio").median().round(DECIMALS),
            median_absolute_error_percent=percent.median().round(DECIMALS),
            p95_absolute_error_percent=percent.quantile(0.95, "linear").round(DECIMALS),
            within_1_percent=(100 * (percent <= 1).mean()).round(2),
            within_5_percent=(100 * (percent <= 5).mean()).round(2),
        )
        .with_columns(slice=pl.lit(name))
    )
