"""Turns measured rows into the columns that the physics reads: each anchor at exactly its own setting. Pure
polars.
"""

from __future__ import annotations

import polars as pl

from estimator.attention_state import (
    CONV_BYTES,
    cached_positions,
    layer_kv_bytes,
    layer_state_bytes,
    read_positions,
    with_engine_settings,
)
from estimator.parallel import kv_replication
from estimator.prefill import SCORED_MIXERS
from estimator.recipes import expert_active_params
from estimator.serving_cube import body_active_params
from estimator.weights import STORED, dense_read_bytes, device_bytes, expert_read_bytes

MODEL_COLUMNS = (
    "model", "n_layers", "n_moe_layers", "n_linear_layers", "hidden_size", "n_kv_heads", "attention_kind",
    "is_moe", "n_experts", "n_experts_used", "embedding_params", "head_params", "is_tied",
    "per_layer_embedding_params", "body_params", "expert_params", "active_params", "vocab_size",
)  # fmt: skip
QUANT_COLUMNS = (
    "quant",
    "quant_class",
    "body_bpw",
    "rest_bpw",
    "embedding_bpw",
    "head_bpw",
    "scope",
    "compute_dtype",
)


def with_recipe(
    anchors: pl.LazyFrame,
    models: pl.LazyFrame,
    quants: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    stored_weights: pl.LazyFrame,
) -> pl.LazyFrame:
    """Adds engine, parallel_mode, the model's and quant's columns, bytes of weights, and bytes per cache
    element.

    `anchors`: gpu, n_gpus, model, framework, quant, kv_dtype. Rows whose quant has no known density, or whose
    cache type no engine of ours has, drop out: there is nothing to compute for them. A cache type means what
    it means to the framework, else to its engine, else (as for other cube rows of that name) the largest
    known size. An engine without a stated way to split works layer by layer.
    """
    engines = frameworks.select(
        "framework",
        "engine",
        pl.col("parallel_mode").cast(pl.String).fill_null("layer"),
        memory_utilization=pl.when(pl.col("memory_policy").cast(pl.String) == "utilization_of_total").then(
            "memory_fraction"
        ),
    )
    element = kv_dtypes.filter(
        pl.col("k_bytes_per_element").is_not_null(), pl.col("v_bytes_per_element").is_not_null()
    )
    own = element.select("framework", "kv_dtype", own_k="k_bytes_per_element", own_v="v_bytes_per_element")
    of_engine = element.select(
        "kv_dtype", engine="framework", engine_k="k_bytes_per_element", engine_v="v_bytes_per_element"
    )
    anyones = element.group_by("kv_dtype").agg(
        any_k=pl.col("k_bytes_per_element").max(), any_v=pl.col("v_bytes_per_element").max()
    )
    return (
        anchors.join(engines, on="framework")
        .join(models.select(*MODEL_COLUMNS), on="model")
        .join(quants.select(*QUANT_COLUMNS), on="quant")
        .join(stored_weights.select("model", "quant", *STORED), on=["model", "quant"])
        .join(anyones, on="kv_dtype")
        .join(own, on=["framework", "kv_dtype"], how="left")
        .join(of_engine, on=["engine", "kv_dtype"], how="left")
        .with_columns(
            k_bytes_per_element=pl.coalesce("own_k", "engine_k", "any_k"),
            v_bytes_per_element=pl.coalesce("own_v", "engine_v", "any_v"),
            dense_read_bytes=dense_read_bytes(),
            expert_read_bytes=expert_read_bytes(),
            weights_bytes=device_bytes(),
            expert_active_params=expert_active_params(),
            body_active_params=body_active_params(),
            kv_replication=kv_replication(),
        )
        .drop("own_k", "own_v", "engine_k", "engine_v", "any_k", "any_v")
    )


def cache_at_depth(
    rows: pl.LazyFrame, layers: pl.LazyFrame, key: str, depth: str, ranks: pl.Expr | None = None
) -> pl.LazyFrame:
    """One row per `key`: bytes of one sequence's cache at column `depth` of `rows`: whole, or on one of
    `ranks`.

    `rows`: key, model, depth, k_bytes_per_element, v_bytes_per_element. Out: key, kv_sequence_bytes (kept),
    kv_step_bytes (read per token, recurrent state read and written), kv_start_bytes (with an empty cache),
    attention_prefill_flops (a prompt of that length), attention_decode_flops (one token at that depth);
    operations are of all ranks together, and null when a layer does not state its heads.
    """
    one = pl.lit(1, dtype=pl.Int64)
    count = pl.col("n_layers").cast(pl.Int64)
    per_layer = (
        rows.select(
            key,
            "model",
            pl.col(depth).cast(pl.Int64).alias("context_tokens"),
            "k_bytes_per_element",
            "v_bytes_per_element",
            n_gpus=one if ranks is None else ranks.cast(pl.Int64),
        )
        .join(layers, on="model")
        .pipe(with_engine_settings)
        .with_columns(
            kept=layer_kv_bytes(cached_positions()),
            read=layer_kv_bytes(read_positions(), reads=True),
            state=layer_state_bytes(CONV_BYTES),
            prompt_flops=_attention_flops(prompt=True),
            token_flops=_attention_flops(prompt=False),
        )
    )
    return per_layer.group_by(key).agg(
        kv_sequence_bytes=((pl.col("kept") + pl.col("state")) * count).sum(),
        kv_step_bytes=((pl.col("read") + 2 * pl.col("state")) * count).sum(),
        kv_start_bytes=(2 * pl.col("state") * count).sum(),
        attention_prefill_flops=_sum_if_known("prompt_flops"),
        attention_decode_flops=_sum_if_known("token_flops"),
    )


def _sum_if_known(name: str) -> pl.Expr:
    return pl.when(~pl.col(name).has_nulls()).then(pl.col(name).sum())


def _attention_flops(prompt: bool) -> pl.Expr:
    """Attention operations of a run of layers, as `prefill.attention_flops` counts them, at the row's
    context.
    """
    scored = pl.col("mixer").cast(pl.String).is_in(SCORED_MIXERS)
    key_size = pl.coalesce("k_head_dim", "latent_dim").cast(pl.Float64)
    value_size = pl.coalesce("v_head_dim", "k_head_dim", "latent_dim").cast(pl.Float64)
    per_position = 2.0 * pl.col("n_layers") * pl.col("n_heads") * (key_size + value_size)
    length = pl.col("context_tokens").cast(pl.Float64)
    span = pl.min_horizontal(length, pl.col("window_tokens").cast(pl.Float64))
    positions = span * length - span * span / 2 if prompt else span
    return pl.when(scored).then(per_position * positions).otherwise(0.0)
