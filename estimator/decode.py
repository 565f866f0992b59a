"""Seconds per generated token of one request: time per layer, weights, cache, and what several GPUs add.

    t = layers x time per layer
      + (dense + experts / e) / ranks x (1 / (efficiency x bandwidth) + 1 / (clock bytes x units x clock))
      + cache / (cache efficiency x bandwidth) / ranks
      + hops (layer split: no gain in bandwidth)  |  time per layer of the all-reduces (tensor parallel)

`decode_work` does everything that needs no GPU, once per recipe; what is left per row is four products.
Source: `tokcube_study/single-request-decode`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl

from estimator.bound import bound_s
from estimator.calibration import MICROSECOND_S, coefficient, gpu_value
from estimator.parallel import pipeline_stages, tensor_ranks

Cache = Literal["full", "start"]


def decode_work(coefficients: pl.DataFrame) -> list[pl.Expr]:
    """The GPU-independent part of `decode_s`, as Float32 columns to be added to recipes.

    Reads decode_layer_s, decode_weight_efficiency, decode_kv_efficiency (of `recipe_coefficients`), n_layers,
    n_moe_layers, n_linear_layers, n_gpus, parallel_mode, dense_read_bytes, expert_read_bytes, kv_read_bytes,
    kv_read_start_bytes, kv_replication. Gives

    * `decode_fixed_s`: seconds per token that no bandwidth shortens
    * `decode_weight_bytes`: bytes streamed per rank, experts counted at their lower efficiency
    * `decode_weight_effective_bytes`: the same over the efficiency of engine and quantization
    * `decode_kv_effective_bytes`, `decode_kv_start_effective_bytes`: cache bytes per rank over their
      efficiency

    Raises KeyError when a constant is missing from `coefficients`.
    """
    moe_layer_s = coefficient(coefficients, "decode", "moe", "moe_layer") * MICROSECOND_S
    linear_layer_s = coefficient(coefficients, "decode", "moe", "linear_layer") * MICROSECOND_S
    expert_efficiency = coefficient(coefficients, "decode", "moe", "expert_efficiency")
    hop_s = coefficient(coefficients, "decode", "multi", "hop") * MICROSECOND_S
    all_reduce_layer_s = coefficient(coefficients, "decode", "multi", "tensor_parallel_layer") * MICROSECOND_S
    ranks = tensor_ranks()
    fixed_s = (
        pl.col("n_layers") * pl.col("decode_layer_s")
        + pl.col("n_moe_layers") * moe_layer_s
        + pl.col("n_linear_layers") * linear_layer_s
        + (pipeline_stages() - 1) * hop_s
        + pl.when(ranks > 1).then(pl.col("n_layers") * all_reduce_layer_s).otherwise(0.0)
    )
    weight_bytes = (pl.col("dense_read_bytes") + pl.col("expert_read_bytes") / expert_efficiency) / ranks
    kv_share = pl.col("kv_replication") / ranks / pl.col("decode_kv_efficiency")
    columns = {
        "decode_fixed_s": fixed_s,
        "decode_weight_bytes": weight_bytes,
        "decode_weight_effective_bytes": weight_bytes / pl.col("decode_weight_efficiency"),
        "decode_kv_effective_bytes": pl.col("kv_read_bytes") * kv_share,
        "decode_kv_start_effective_bytes": pl.col("kv_read_start_bytes") * kv_share,
    }
    return [expression.cast(pl.Float32).alias(name) for name, expression in columns.items()]


def decode_s(cache: Cache = "full", gpu: Mapping[str, float | None] | None = None) -> pl.Expr:
    """Seconds per token with the cache full (at `context_tokens`) or empty (`start`), before the bound.

    Reads the columns of `decode_work` and weight_s_per_byte, clock_s_per_byte, kv_s_per_byte of
    `gpu_coefficients` (as columns, or from `gpu`). Null where the bandwidth is unknown.
    """
    kv = "decode_kv_effective_bytes" if cache == "full" else "decode_kv_start_effective_bytes"
    return (
        pl.col("decode_fixed_s")
        + pl.col("decode_weight_effective_bytes") * gpu_value("weight_s_per_byte", gpu)
        + pl.col("decode_weight_bytes") * gpu_value("clock_s_per_byte", gpu)
        + pl.col(kv) * gpu_value("kv_s_per_byte", gpu)
    )


def decode_tok_s(cache: Cache = "full", gpu: Mapping[str, float | None] | None = None) -> pl.Expr:
    """Tokens per second, never above `decode_tok_s_bound` of the same cache. Reads as `decode_s` and
    `bound_s`.
    """
    seconds, least = decode_s(cache, gpu), bound_s(cache, gpu)
    return 1 / pl.when(seconds < least).then(least).otherwise(seconds)
