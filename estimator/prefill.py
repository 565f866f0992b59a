"""Seconds to read one prompt: matrix products, attention, weights read again per micro-batch, time per layer.

    t(T) = T x 2 x active parameters / (utilisation x rate)
         + attention operations / (attention utilisation x rate)
         + micro-batches x (weights / (0.75 x bandwidth) + layers x time per layer)
         + all-reduce volume / link

with micro-batches = T / min(T, 512). Routed experts run at 0.59 of the utilisation of dense layers. Tensor
parallel divides compute and weights by the ranks. Under layer split no gain is assumed, although
micro-batches can overlap: measured gains of 1.0 to 1.8 depend on the build. A study reached 29 to 41 % median
error with this: a rough number. Source: `tokcube_study/single-request-prefill`.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from estimator.bound import FLOPS_PER_PARAMETER
from estimator.calibration import MICROSECOND_S, coefficient, gpu_value
from estimator.parallel import all_reduce_bytes, pipeline_stages, tensor_ranks

SCORED_MIXERS = ("full", "sliding", "chunked", "mla", "cross")


def attention_flops(layers: pl.LazyFrame, tokens: pl.LazyFrame) -> pl.LazyFrame:
    """Operations of attention scores and weighted values. One row per (model, tokens).

    `layers` (one row per model and run of layers) gives model, n_layers, mixer, n_heads, k_head_dim,
    v_head_dim, latent_dim, window_tokens; `tokens` one column `tokens`. Returns model, tokens and

    * `attention_prefill_flops`: 2 x heads x (key + value size) x positions seen, summed over a causal prompt;
      positions seen = T^2 / 2, or w T - w^2 / 2 once the prompt is longer than a window w
    * `attention_decode_flops`: for one token at depth `tokens` (windows capped)

    Both are null when a scoring layer does not state its heads or sizes. A latent cache without head sizes
    counts at its latent size. Source: 4 T^2 h a / 2 of causal attention (two products, half of the square).
    """
    scored = pl.col("mixer").cast(pl.String).is_in(SCORED_MIXERS)
    key_size = pl.coalesce("k_head_dim", "latent_dim").cast(pl.Float64)
    value_size = pl.coalesce("v_head_dim", "k_head_dim", "latent_dim").cast(pl.Float64)
    per_position = 2.0 * pl.col("n_layers") * pl.col("n_heads") * (key_size + value_size)
    length = pl.col("tokens").cast(pl.Float64)
    span = pl.min_horizontal(length, pl.col("window_tokens").cast(pl.Float64))
    positions = span * length - span * span / 2
    return (
        layers.with_columns(pl.when(scored).then(per_position).otherwise(0.0).alias("_per_position"))
        .join(tokens.unique(), how="cross")
        .group_by("model", "tokens")
        .agg(
            pl.when(pl.col("_per_position").has_nulls()).then(None).otherwise(
                (pl.col("_per_position") * positions).sum()
            ).alias("attention_prefill_flops"),
            pl.when(pl.col("_per_position").has_nulls()).then(None).otherwise(
                (pl.col("_per_position") * span).sum()
            ).alias("attention_decode_flops"),
        )
        .sort("model", "tokens")
    )  # fmt: skip


def prefill_work(coefficients: pl.DataFrame) -> list[pl.Expr]:
    """The GPU-independent part of `prompt_s`, as Float32 columns to be added to recipes.

    Reads prefill_layer_s, prefill_efficiency, prefill_attention_efficiency (of `recipe_coefficients`),
    n_layers, n_moe_layers, n_linear_layers, hidden_size, n_gpus, parallel_mode, active_params,
    expert_active_params (routed parameters that one token uses, part of active_params; 0 in a dense model),
    weights_bytes, attention_prefill_flops, context_tokens (the prompt fills the context). Gives
    `prefill_fixed_s, prefill_effective_flops, prefill_attention_effective_flops, prefill_reread_bytes,
    prefill_all_reduce_bytes, prefill_least_flops`. Raises KeyError when a constant is missing from
    `coefficients`.
    """
    moe_layer_s = coefficient(coefficients, "prefill", "moe", "moe_layer") * MICROSECOND_S
    linear_layer_s = coefficient(coefficients, "prefill", "moe", "linear_layer") * MICROSECOND_S
    expert_efficiency = coefficient(coefficients, "prefill", "moe", "expert_efficiency")
    hop_s = coefficient(coefficients, "prefill", "multi", "hop") * MICROSECOND_S
    all_reduce_layer_s = (
        coefficient(coefficients, "prefill", "multi", "tensor_parallel_layer") * MICROSECOND_S
    )
    micro_batch = coefficient(coefficients, "prefill", "prompt", "ubatch_tokens")
    reread_efficiency = coefficient(coefficients, "prefill", "prompt", "reread_efficiency")
    ranks, tokens = tensor_ranks(), pl.col("context_tokens")
    micro_batches = (tokens / micro_batch).clip(lower_bound=1.0)
    dense_params = pl.col("active_params") - pl.col("expert_active_params")
    costed_params = dense_params + pl.col("expert_active_params") / expert_efficiency
    batch_s = (
        pl.col("n_layers") * pl.col("prefill_layer_s")
        + pl.col("n_moe_layers") * moe_layer_s
        + pl.col("n_linear_layers") * linear_layer_s
        + (pipeline_stages() - 1) * hop_s
        + pl.when(ranks > 1).then(pl.col("n_layers") * all_reduce_layer_s).otherwise(0.0)
    )
    columns = {
        "prefill_fixed_s": micro_batches * batch_s,
        "prefill_effective_flops": FLOPS_PER_PARAMETER
        * tokens
        * costed_params
        / pl.col("prefill_efficiency")
        / ranks,
        "prefill_attention_effective_flops": (
            pl.col("attention_prefill_flops") / pl.col("prefill_attention_efficiency") / ranks
        ),
        "prefill_reread_bytes": micro_batches * pl.col("weights_bytes") / reread_efficiency / ranks,
        "prefill_all_reduce_bytes": all_reduce_bytes(tokens),
        "prefill_least_flops": FLOPS_PER_PARAMETER * tokens * pl.col("active_params") / ranks,
    }
    return [expression.cast(pl.Float32).alias(name) for name, expression in columns.items()]


def prompt_s(gpu: Mapping[str, float | None] | None = None) -> pl.Expr:
    """Seconds for a prompt of `context_tokens` tokens; null where no compute rate or no needed link is known.

    Reads the columns of `prefill_work` and prefill_s_per_flop, attention_s_per_flop, kv_s_per_byte,
    link_s_per_byte, bound_s_per_flop of `gpu_coefficients` (or `gpu`). Never less than the matrix products at
    the highest rate.
    """
    exchange_s = (
        pl.when(pl.col("prefill_all_reduce_bytes") > 0)
        .then(pl.col("prefill_all_reduce_bytes") * gpu_value("link_s_per_byte", gpu))
        .otherwise(0.0)
    )
    seconds = (
        pl.col("prefill_fixed_s")
        + pl.col("prefill_effective_flops") * gpu_value("prefill_s_per_flop", gpu)
        + pl.col("prefill_attention_effective_flops") * gpu_value("attention_s_per_flop", gpu)
        + pl.col("prefill_reread_bytes") * gpu_value("kv_s_per_byte", gpu)
        + exchange_s
    )
    least = pl.col("prefill_least_flops") * gpu_value("bound_s_per_flop", gpu)
    return pl.when(seconds < least).then(least).otherwise(seconds)


def prefill_tok_s(prompt_seconds: pl.Expr) -> pl.Expr:
    """Prompt tokens per second, from `prompt_s` (or a column that holds it) and `context_tokens`."""
    return pl.col("context_tokens").cast(pl.Float32) / prompt_seconds


def ttft_ms(prompt_seconds: pl.Expr) -> pl.Expr:
    """Milliseconds to the first token on an idle engine: the whole prompt, nothing for a server."""
    return prompt_seconds * 1000.0
