"""The cube `serving`: one GPU meets all serving recipes it can run, workload by workload. Streams like
`cube`.

Physics is in `serving`; here recipes are laid out once and a GPU's numbers are put beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from estimator.attention_state import cache_bytes_by_setting
from estimator.capacity import BYTES_PER_GIB, engine_usable_gib
from estimator.cube import published, published_end, with_stack
from estimator.parallel import kv_replication
from estimator.prefill import attention_flops
from estimator.recipes import expert_active_params
from estimator.serving import serving_estimates

COMPUTE_DTYPES = pl.Enum(["fp16", "bf16", "fp8", "int8", "fp4"])
KEY = ("model", "framework", "quant", "kv_dtype", "n_gpus", "workload", "concurrency")
NUMBERS = (
    "dense_read_bytes", "expert_bytes", "weights_bytes", "active_params", "body_active_params",
    "kv_replication", "attention_prefill_flops", "kv_sequence_bytes", "kv_step_bytes",
    "memory_utilization", "share_of_free", "runtime_bytes", "input_tokens", "output_tokens", "n_layers",
    "hidden_size", "n_experts", "n_experts_used",
)  # fmt: skip


def mid_output_tokens() -> pl.Expr:
    """Depth of a request halfway through its answer: its prompt and half of what it will generate."""
    return pl.col("input_tokens") + pl.col("output_tokens") // 2


def body_active_params() -> pl.Expr:
    """Active parameters without the output matrix, which a prompt goes through only once."""
    head = pl.when(pl.col("is_tied")).then(pl.col("embedding_params")).otherwise(pl.col("head_params"))
    return pl.col("active_params") - head


def serving_recipes(
    formats: pl.LazyFrame,
    settings: pl.LazyFrame,
    refused: pl.LazyFrame,
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    weights: pl.LazyFrame,
    runtime: pl.LazyFrame,
    workloads: pl.LazyFrame,
) -> pl.LazyFrame:
    """One row per serving recipe, sorted by `KEY` (and backend, of which a GPU has one).

    `formats`: format, framework, engine, backend, parallel_mode, memory_utilization, share_of_free, quant,
    compute_dtype, kv_dtype, k_bytes_per_element, v_bytes_per_element, framework_citation; `settings` and
    `refused`: see `runnable`; `workloads`: workload, input_tokens, output_tokens, concurrency; the rest:
    the tables. Requests longer than the model's native context are left out. runtime_bytes: of the
    smallest context of the table that holds a request, on the smallest GPUs.
    """
    lengths = workloads.select(tokens=pl.col("input_tokens").cast(pl.Int64)).unique()
    attention = attention_flops(layers, lengths).select("model", "tokens", "attention_prefill_flops")
    caches = _request_caches(formats, layers, workloads)
    shaped = models.with_columns(
        expert_active_params=expert_active_params(), body_active_params=body_active_params()
    ).select(
        "model", "n_layers", "hidden_size", "n_experts", "n_experts_used", "active_params",
        "body_active_params", "n_kv_heads", "attention_kind", "native_context_tokens", "is_moe",
    )  # fmt: skip
    rows = (
        settings.join(formats, on=["framework", "kv_dtype"])
        .join(refused, on=["framework", "quant", "model", "n_gpus"], how="anti")
        .join(weights.drop("weights_bytes"), on=["model", "framework", "quant", "n_gpus"])
        .rename({"device_bytes": "weights_bytes"})
        .join(shaped, on="model")
        .join(workloads, how="cross")
        .filter(pl.col("input_tokens") + pl.col("output_tokens") <= pl.col("native_context_tokens"))
        .join(attention, left_on=["model", "input_tokens"], right_on=["model", "tokens"])
        .join(
            caches,
            on=["model", "k_bytes_per_element", "v_bytes_per_element", "input_tokens", "output_tokens"],
        )
        .join(_held_in(workloads, runtime), on=["input_tokens", "output_tokens"])
        .join(
            runtime.select("model", "framework", "backend", "context_tokens", "n_gpus", "runtime_bytes"),
            on=["model", "framework", "backend", "context_tokens", "n_gpus"],
        )
        .with_columns(kv_replication=kv_replication())
    )
    return rows.select(
        *KEY,
        "format",
        "arch_min",
        "engine",
        "backend",
        "parallel_mode",
        pl.col("compute_dtype").cast(pl.String).cast(COMPUTE_DTYPES),
        "is_moe",
        *[pl.col(name).cast(pl.Float32) for name in NUMBERS],
        "model_citation",
        "quant_citation",
        "framework_citation",
    ).sort(*KEY, "backend")


def at_size(recipes: pl.DataFrame, steps: pl.DataFrame, runtime_steps: pl.DataFrame) -> pl.DataFrame:
    """The recipes with runtime_bytes of one GPU's steps (framework, at_least_gib). Row order is kept.

    `runtime_steps`: the table, typed as the recipes.
    """
    key = ["model", "framework", "n_gpus"]
    extra = runtime_steps.join(steps, on=["framework", "at_least_gib"]).select(*key, "extra_bytes")
    more = pl.col("extra_bytes").fill_null(0).cast(pl.Float32)
    return (
        recipes.join(extra, on=key, how="left", maintain_order="left")
        .with_columns(runtime_bytes=pl.col("runtime_bytes") + more)
        .drop("extra_bytes")
    )


def _held_in(workloads: pl.LazyFrame, runtime: pl.LazyFrame) -> pl.LazyFrame:
    """input_tokens, output_tokens, context_tokens: the smallest context that holds both, else the largest."""
    tokens, context = pl.col("input_tokens") + pl.col("output_tokens"), pl.col("context_tokens")
    return (
        workloads.select("input_tokens", "output_tokens")
        .unique()
        .join(runtime.select("context_tokens").unique(), how="cross")
        .group_by("input_tokens", "output_tokens")
        .agg(context_tokens=pl.coalesce(context.filter(context >= tokens).min(), context.max()))
    )


def serving(
    recipes: pl.DataFrame,
    gpu: Mapping[str, Any],
    gpu_stacks: pl.DataFrame,
    rates: pl.DataFrame,
    coefficients: pl.DataFrame,
) -> pl.LazyFrame:
    """The rows of one GPU, in the order of `recipes`, with every column of the table but typed ids.

    `gpu`: gpu, citation, memory_gib, usable_gib (null when unknown), bandwidth_gb_s, link_one_way_gb_s;
    `gpu_stacks`: engine, backend, is_moe, basis, interval_low, interval_high of this GPU for serving;
    `rates`: compute_dtype, serving_tflops of this GPU.
    """
    rated = recipes.with_columns(
        _rate(recipes, rates).alias("serving_tflops"),
        engine_gib=_engine_gib(gpu),
    )
    rows = with_stack(rated, gpu_stacks, ("basis", "interval_low", "interval_high"))
    on_gpu = rows.lazy().with_columns(
        *[
            pl.lit(gpu[name], dtype=pl.Float32).alias(name)
            for name in ("memory_gib", "bandwidth_gb_s", "link_one_way_gb_s")
        ],
    )
    estimated = serving_estimates(on_gpu, coefficients)
    speed = pl.col("output_tok_s")
    return estimated.with_columns(
        gpu=pl.lit(gpu["gpu"]),
        gpu_citation=pl.lit(gpu["citation"]),
        output_tok_s_low=published_end(speed * pl.col("interval_low")),
        output_tok_s_mid=published(speed),
        output_tok_s_high=published_end(speed * pl.col("interval_high")),
        output_tok_s_per_request=published(pl.col("output_tok_s_per_request")),
        ttft_ms=published(pl.col("ttft_ms")),
        tpot_ms=published(pl.col("tpot_ms")),
    )


def _engine_gib(gpu: Mapping[str, Any]) -> pl.Expr:
    """What one GPU has for weights and cache: what the engine may use (of all memory, where the usable one
    is not known) less its runtime memory.
    """
    memory = pl.lit(gpu["memory_gib"], dtype=pl.Float32)
    usable = pl.coalesce(pl.lit(gpu["usable_gib"], dtype=pl.Float32), memory)
    return (engine_usable_gib(usable, memory) - pl.col("runtime_bytes") / BYTES_PER_GIB).cast(pl.Float32)


def _rate(recipes: pl.DataFrame, rates: pl.DataFrame) -> pl.Series:
    """The GPU's rate for the arithmetic of each row's format: five values, gathered by code."""
    order = pl.DataFrame({"compute_dtype": COMPUTE_DTYPES.categories})
    laid_out = order.join(rates, on="compute_dtype", how="left", maintain_order="left")
    by_code = laid_out.get_column("serving_tflops").cast(pl.Float32)
    return by_code.gather(recipes.get_column("compute_dtype").to_physical().cast(pl.UInt32))


def _request_caches(formats: pl.LazyFrame, layers: pl.LazyFrame, workloads: pl.LazyFrame) -> pl.LazyFrame:
    """Bytes of one request's cache halfway through its answer: kept (kv_sequence_bytes) and read per step."""
    settings = (
        formats.select("k_bytes_per_element", "v_bytes_per_element")
        .unique()
        .join(workloads.select("input_tokens", "output_tokens").unique(), how="cross")
        .with_columns(context_tokens=mid_output_tokens().cast(pl.Int64), n_gpus=pl.lit(1, dtype=pl.Int64))
    )
    return cache_bytes_by_setting(layers, settings).select(
        "model",
        "k_bytes_per_element",
        "v_bytes_per_element",
        "input_tokens",
        "output_tokens",
        kv_sequence_bytes=pl.col("kv_bytes") + pl.col("state_bytes"),
        kv_step_bytes=pl.col("kv_read_bytes"),
    )
