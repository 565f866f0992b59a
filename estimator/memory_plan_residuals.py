"""Estimates beside what llama.cpp's own planner answers, for exactly its settings. Pure polars."""

from __future__ import annotations

import polars as pl

from estimator.llama_cpp_compute import (
    compute_shapes,
    device_compute_bytes,
    host_compute_bytes,
    with_coefficients,
)
from estimator.llama_cpp_context import SETTINGS, context_bytes, with_llama_cpp_layers
from estimator.memory_plan_weights import EXACT_MIB, weights_difference

BYTES_PER_MIB = 2**20
FRAMEWORK = "llama.cpp"
HOST = "host"
PLAN_KEY = (
    "model", "weights", "prediction_layers", "context_tokens", "ubatch_tokens", "slots", "kv_unified",
    "flash_attention", "kv_dtype", "outputs", "n_gpus", "device",
)  # fmt: skip
DECIMALS = 4


def memory_plan_residuals(
    plans: pl.LazyFrame,
    layers: pl.LazyFrame,
    coefficients: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    weights: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `memory_plan_residuals`: one row per planned device, estimates in MiB and their errors.

    `plans`, `layers` (`llama_cpp_layers`), `coefficients` (`llama_cpp_compute`) and `kv_dtypes`: the tables;
    `weights`: from `memory_plan_weights.planned_weights`.
    """
    densities = kv_dtypes.filter(pl.col("framework") == FRAMEWORK).select(
        "kv_dtype", "k_bytes_per_element", "v_bytes_per_element"
    )
    asked = (
        plans.with_columns(plan_device=pl.col("device").cast(pl.String))
        .join(densities, on="kv_dtype")
        .with_columns(
            is_host=pl.col("plan_device") == HOST,
            device=pl.col("plan_device").str.extract(r"^gpu(\d+)$").cast(pl.Int64),
            flash=pl.col("flash_attention").cast(pl.String),
            swa_full=pl.lit(False),
        )
        .with_columns(flash_attention=pl.col("flash") == "on")
        .with_columns(pl.col("context_tokens", "ubatch_tokens", "slots", "n_gpus", "outputs").cast(pl.Int64))
    )
    left_out = layers.with_columns(prediction_layers=pl.lit(0, pl.Int16))
    parts = [
        _estimated(asked.filter(pl.col("prediction_layers").cast(pl.String) == "kept"), layers, coefficients),
        _estimated(
            asked.filter(pl.col("prediction_layers").cast(pl.String) == "left_out"), left_out, coefficients
        ),
    ]
    return (
        pl.concat(parts)
        .with_columns(file=pl.col("prediction_layers").cast(pl.String))
        .join(
            weights.rename({"prediction_layers": "file", "device": "plan_device"}),
            on=["model", "weights", "file", "n_gpus", "plan_device"],
            how="left",
        )
        .select(
            *(name for name in PLAN_KEY if name not in ("flash_attention", "device")),
            quant="quant",
            flash_attention="flash",
            device="plan_device",
            weights_mib="weights_mib",
            weights_estimated_mib=_mib("weights_bytes"),
            weights_error_mib=(_mib("weights_bytes") - pl.col("weights_mib")).round(DECIMALS),
            context_mib="context_mib",
            context_estimated_mib=_mib("context_bytes"),
            context_error_mib=(_mib("context_bytes") - pl.col("context_mib")).round(DECIMALS),
            compute_mib="compute_mib",
            compute_estimated_mib=_mib("compute_bytes"),
            compute_error_percent=(100 * (_mib("compute_bytes") / pl.col("compute_mib") - 1)).round(DECIMALS),
            citation="citation",
        )
        .with_columns(weights_difference=weights_difference())
        .sort(PLAN_KEY)
    )


def _mib(column: str) -> pl.Expr:
    return (pl.col(column) / BYTES_PER_MIB).round(DECIMALS)


def _estimated(asked: pl.LazyFrame, layers: pl.LazyFrame, coefficients: pl.LazyFrame) -> pl.LazyFrame:
    cached = with_llama_cpp_layers(layers.join(asked.select("model").unique(), on="model", how="semi"))
    settings = asked.select(SETTINGS).unique(maintain_order=True)
    contexts = context_bytes(cached, settings)
    shapes = with_coefficients(compute_shapes(cached), coefficients)
    compute = pl.when("is_host").then(host_compute_bytes()).otherwise(device_compute_bytes(pl.col("device")))
    columns = list(asked.collect_schema())
    return (
        asked.join(contexts, on=["model", *SETTINGS, "device"], how="left")
        .join(shapes, on="model")
        .with_columns(
            compute_bytes=compute,
            context_bytes=pl.when("is_host").then(0).otherwise("context_bytes"),
        )
        .select(*columns, "context_bytes", "compute_bytes")
    )


def memory_plan_accuracy(residuals: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """The table `memory_plan_accuracy`: how far weights, context and compute memory are from the planner, in
    slices.

    `residuals`: the table `memory_plan_residuals`; `models`: model, model_type.
    """
    rows = residuals.join(models.select("model", "model_type"), on="model", how="left")
    on_host = pl.col("device").cast(pl.String) == HOST
    slices = {
        "all": pl.lit("all"),
        "flash_attention": pl.col("flash_attention").cast(pl.String),
        "gpu_count": pl.col("n_gpus").cast(pl.String),
        "outputs": pl.when(pl.col("outputs") > pl.col("slots"))
        .then(pl.lit("per token"))
        .otherwise(pl.lit("per slot")),
        "kv_dtype": pl.col("kv_dtype").cast(pl.String),
        "device_by_flash_attention": pl.concat_str(
            pl.when(on_host).then(pl.lit("host")).otherwise(pl.lit("gpu")),
            pl.lit(", "),
            pl.col("flash_attention").cast(pl.String),
        ),
        "device": pl.when(on_host).then(pl.lit("host")).otherwise(pl.lit("gpu")),
        "model_type": pl.col("model_type"),
    }
    return pl.concat([_slice(rows, name, value) for name, value in slices.items()]).sort("slice", "value")


def _slice(rows: pl.LazyFrame, name: str, value: pl.Expr) -> pl.LazyFrame:
    weights = pl.col("weights_error_mib").abs()
    context, compute = pl.col("context_error_mib").abs(), pl.col("compute_error_percent").abs()
    return (
        rows.group_by(value=value)
        .agg(
            n_plans=pl.len().cast(pl.Int32),
            n_models=pl.col("model").n_unique().cast(pl.Int32),
            n_weights=weights.count().cast(pl.Int32),
            weights_exact_percent=(100 * (weights <= EXACT_MIB).mean()).round(2),
            weights_largest_error_mib=weights.max(),
            context_within_percent=(100 * (context <= 0.1).mean()).round(2),
            context_largest_error_mib=context.max(),
            compute_median_error_percent=compute.median().round(DECIMALS),
            compute_p95_error_percent=compute.quantile(0.95, "linear").round(DECIMALS),
            compute_within_percent=(100 * (compute <= 2.0).mean()).round(2),
        )
        .with_columns(slice=pl.lit(name))
        .select("slice", "value", pl.exclude("slice", "value"))
    )
