"""Everything about a combination that does not depend on the GPU, worked out once: the cube's left-hand side.

A recipe is model x framework x backend x quant x kv_dtype x n_gpus x context. Its memory is final (bytes per
GPU do not depend on which GPU), its speed is reduced to a few numbers that one GPU's rates turn into seconds.
Pure polars.
"""

from __future__ import annotations

import polars as pl

from estimator.bound import bound_work
from estimator.calibration import recipe_coefficients
from estimator.capacity import gib, total_gib
from estimator.decode import decode_work
from estimator.prefill import attention_flops, prefill_work

CONTEXT_STATES = pl.Enum(["native", "extended"])
KEY = ("model", "framework", "backend", "quant", "kv_dtype", "n_gpus", "context_tokens")
MODEL_COLUMNS = (
    "model", "n_layers", "n_moe_layers", "n_linear_layers", "hidden_size", "n_kv_heads", "attention_kind",
    "is_moe", "n_experts", "n_experts_used", "expert_params", "active_params", "native_context_tokens",
)  # fmt: skip
WORK_COLUMNS = (
    "decode_fixed_s", "decode_weight_bytes", "decode_weight_effective_bytes", "decode_kv_effective_bytes",
    "decode_kv_start_effective_bytes", "bound_bytes", "bound_start_bytes", "bound_flops", "bound_start_flops",
    "prefill_fixed_s", "prefill_effective_flops", "prefill_attention_effective_flops", "prefill_reread_bytes",
    "prefill_all_reduce_bytes", "prefill_least_flops",
)  # fmt: skip


def context_state() -> pl.Expr:
    """`native` up to the context the checkpoint was trained for, `extended` beyond it (rope scaling)."""
    beyond = pl.col("context_tokens") > pl.col("native_context_tokens")
    return beyond.cast(pl.UInt8).cat.to(CONTEXT_STATES)


def expert_active_params() -> pl.Expr:
    """Routed parameters one token uses: K of E."""
    share = (pl.col("n_experts_used") / pl.col("n_experts")).fill_null(0.0).fill_nan(0.0)
    return (pl.col("expert_params") * share).fill_null(0.0)


def recipes(
    formats: pl.LazyFrame,
    settings: pl.LazyFrame,
    refused: pl.LazyFrame,
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    weights: pl.LazyFrame,
    kv_cache: pl.LazyFrame,
    runtime: pl.LazyFrame,
    coefficients: pl.DataFrame,
    extended_context_factor: int,
) -> pl.LazyFrame:
    """One row per recipe, sorted by `KEY`.

    `formats`: format (its number), framework, engine, backend, parallel_mode, memory_utilization,
    share_of_free, quant,
    quant_class, kv_dtype, framework_citation; `settings` and `refused`: `runnable.model_settings` and
    `runnable.refused_splits`; the rest: the tables of those names. A model's contexts end at
    `extended_context_factor` times its native one; models without a native context have none. The table
    kv_cache counts what is read on all ranks, so nothing is replicated again; a prompt reads the weights of
    all GPUs. Adds weights_gib, kv_cache_gib, runtime_gib, total_gib (per GPU), context_state, the columns of
    decode_work, bound_work and prefill_work, and the citations.
    """
    shaped = models.select(*MODEL_COLUMNS, expert_active_params=expert_active_params())
    lengths = kv_cache.select(tokens=pl.col("context_tokens")).unique()
    attention = attention_flops(layers, lengths).rename({"tokens": "context_tokens"})
    joined = (
        settings.join(formats, on=["framework", "kv_dtype"])
        .join(refused, on=["framework", "quant", "model", "n_gpus"], how="anti")
        .join(weights, on=["model", "framework", "quant", "n_gpus"])
        .join(kv_cache.drop("model_citation"), on=["model", "framework", "kv_dtype", "n_gpus"])
        .join(shaped, on="model")
        .filter(pl.col("context_tokens") <= extended_context_factor * pl.col("native_context_tokens"))
        .join(
            runtime.drop("framework_citation"),
            on=["model", "framework", "backend", "context_tokens", "n_gpus"],
        )
        .join(attention, on=["model", "context_tokens"], how="left")
        .with_columns(weights_gib=gib("weights_bytes"), kv_cache_gib=gib("reserved_bytes"),
                      runtime_gib=gib("runtime_bytes"), kv_replication=pl.lit(1.0))
        .with_columns(total_gib=total_gib(), context_state=context_state(), weights_bytes="device_bytes")
        .rename({"read_bytes": "kv_read_bytes", "start_read_bytes": "kv_read_start_bytes"})
    )  # fmt: skip
    worked = recipe_coefficients(joined, coefficients).with_columns(
        *decode_work(coefficients),
        *bound_work(),
        *prefill_work(coefficients),
    )
    memory = [
        pl.col(name).cast(pl.Float32) for name in ("weights_gib", "kv_cache_gib", "runtime_gib", "total_gib")
    ]
    return worked.select(
        *KEY,
        "format",
        "arch_min",
        "engine",
        "is_moe",
        "context_state",
        pl.col("memory_utilization").cast(pl.Float32),
        pl.col("share_of_free").cast(pl.Float32),
        *memory,
        *WORK_COLUMNS,
        "model_citation",
        "quant_citation",
        "framework_citation",
    ).sort(KEY)
