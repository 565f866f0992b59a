"""Throughput and latency of many requests at once: the time of one step is a sum, prompts and steps share the
GPU.

    step    = stages x (host + smooth max(weights, compute) + cache + all-reduce)
    prompts = smooth max(compute of all prompts, weights once) + host + all-reduce of all prompt tokens
    output tokens per second = B x output / (prompts(B) + output x step(B))

for B requests together: what is asked for, or what the cache pool holds. Weights of a mixture of experts
count the distinct experts that b tokens touch, E (1 - (1 - K/E)^b). Sizes are bytes, memory is GiB. One set
of constants for all engines; nothing per engine belongs here. Source: `tokcube_study/serving-global` (20 to
22 % median error on devices, models or sources left out).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.attention_state import with_missing
from estimator.bound import FLOPS_PER_PARAMETER
from estimator.calibration import GIGA, MICROSECOND_S, TERA, coefficient
from estimator.parallel import all_reduce_bytes, pipeline_stages, tensor_ranks

GIB: Final = 1024.0**3
LIMITS: Final = ("memory", "compute", "bandwidth", "capacity")
LIMITED_BY: Final = pl.Enum(LIMITS)
# A cache of a few bytes would allow absurd numbers of sequences; no engine schedules more than this.
MOST_SEQUENCES: Final = 1_000_000


def serving_estimates(rows: pl.LazyFrame, coefficients: pl.DataFrame) -> pl.LazyFrame:
    """Adds the serving estimates to each row. Elementwise: row order and count stay.

    Reads, per row
    recipe: n_gpus, parallel_mode, n_layers, hidden_size, n_experts, n_experts_used (null or 0 when dense),
    dense_read_bytes (body and head), expert_bytes (all routed experts), weights_bytes (on all GPUs together),
    active_params, body_active_params (without the head), kv_replication
    workload: input_tokens, output_tokens, concurrency, attention_prefill_flops (at input_tokens),
    kv_sequence_bytes (one copy of one sequence at input + output / 2), kv_step_bytes (read per step and
    sequence at that depth, windows capped)
    engine: memory_utilization (share of the memory it may use; null = 0.90); where they are known, engine_gib
    (what one GPU has for weights and cache) and share_of_free (of what weights leave, for the cache)
    GPU: memory_gib, bandwidth_gb_s, serving_tflops (`calibration.serving_rates`), link_one_way_gb_s

    Adds max_concurrency (sequences the cache pool holds at mid-output depth), served_concurrency, step_s,
    prefill_s, output_tok_s (all requests), output_tok_s_per_request (one of those being served), ttft_ms,
    tpot_ms (both include what prompts of other requests take), limited_by. Speeds are null where not one
    sequence fits (`memory`) and where a rate or a needed link is unknown. Raises KeyError when a constant is
    missing.
    """
    alone = pl.lit(1.0)
    known = with_missing(rows, {"engine_gib": pl.Float64, "share_of_free": pl.Float64})
    return (
        known.with_columns(max_concurrency(coefficients).alias("max_concurrency"))
        .with_columns(_served().alias("served_concurrency"))
        .with_columns((pl.col("served_concurrency") / pipeline_stages()).clip(lower_bound=1.0).alias("_b"))
        .with_columns(
            _weight_s(coefficients, pl.col("_b")).alias("_weight_s"),
            _compute_s(coefficients).alias("_compute_s"),
            _kv_s(coefficients).alias("_kv_s"),
            _prompt_compute_s(coefficients, pl.col("served_concurrency")).alias("_prompt_compute_s"),
        )
        .with_columns(
            _step_s(coefficients).alias("step_s"),
            _prompts_s(coefficients, pl.col("served_concurrency"), pl.col("_prompt_compute_s")).alias(
                "prefill_s"
            ),
            _prompts_s(coefficients, alone, _prompt_compute_s(coefficients, alone)).alias("_own_s"),
        )
        .with_columns(_output_tok_s().alias("output_tok_s"))
        .with_columns(
            (pl.col("output_tok_s") / pl.col("served_concurrency")).alias("output_tok_s_per_request"),
            _ttft_ms(coefficients).alias("ttft_ms"),
            (1000.0 * pl.col("served_concurrency") / pl.col("output_tok_s")).alias("tpot_ms"),
            _limited_by().alias("limited_by"),
        )
        .drop("_b", "_weight_s", "_compute_s", "_kv_s", "_prompt_compute_s", "_own_s")
    )


def max_concurrency(coefficients: pl.DataFrame) -> pl.Expr:
    """Sequences that the cache pool holds at mid-output depth, rounded down (Int32); 0 without room.

    Pool = engine_gib x GPUs - weights, and the engine's share of that. Where engine_gib is not known:
    memory x utilization - 1.5 GB, memory in GiB.
    """
    utilization = coefficient(coefficients, "serving", "capacity", "memory_utilization")
    overhead_bytes = coefficient(coefficients, "serving", "capacity", "overhead_per_gpu") * GIGA
    usual_bytes = (
        pl.col("memory_gib") * GIB * pl.col("memory_utilization").fill_null(utilization) - overhead_bytes
    )
    gpu_bytes = pl.coalesce(pl.col("engine_gib") * GIB, usual_bytes)
    free_bytes = gpu_bytes * pl.col("n_gpus") - pl.col("weights_bytes")
    pool_bytes = free_bytes * pl.col("share_of_free").fill_null(1.0)
    sequences = pool_bytes / (pl.col("kv_sequence_bytes") * pl.col("kv_replication"))
    return (
        pl.when(pool_bytes <= 0)
        .then(0.0)
        .otherwise(sequences.clip(upper_bound=float(MOST_SEQUENCES)))
        .floor()
        .cast(pl.Int32)
    )


def _served() -> pl.Expr:
    """Requests in progress together: what is asked for or what fits, null when nothing fits."""
    fits = pl.min_horizontal("concurrency", "max_concurrency").cast(pl.Float64)
    return pl.when(pl.col("max_concurrency") >= 1).then(fits)


def _smooth_max(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    """(a^3 + b^3)^(1/3): a soft corner between two limits; a power of 3 fitted better than 1.5 and 12."""
    return (one * one * one + other * other * other).cbrt()


def _weight_s(coefficients: pl.DataFrame, tokens: pl.Expr) -> pl.Expr:
    """Seconds to stream the weights that `tokens` tokens touch, cut over all GPUs."""
    efficiency = coefficient(coefficients, "serving", "global", "weight_efficiency")
    expert_efficiency = coefficient(coefficients, "serving", "global", "expert_efficiency")
    missed = 1 - (pl.col("n_experts_used") / pl.col("n_experts")).fill_null(1.0).fill_nan(1.0)
    touched = 1 - missed.pow(tokens)
    read_bytes = pl.col("dense_read_bytes") + pl.col("expert_bytes") * touched / expert_efficiency
    return read_bytes / (pl.col("n_gpus") * pl.col("bandwidth_gb_s") * GIGA * efficiency)


def _compute_s(coefficients: pl.DataFrame) -> pl.Expr:
    """Seconds of matrix products in one step of b sequences, cut over all GPUs."""
    efficiency = coefficient(coefficients, "serving", "global", "decode_compute_efficiency")
    flops = FLOPS_PER_PARAMETER * pl.col("active_params") * pl.col("_b")
    return flops / (pl.col("n_gpus") * pl.col("serving_tflops") * TERA * efficiency)


def _kv_s(coefficients: pl.DataFrame) -> pl.Expr:
    """Seconds to read the cache of b sequences, cut over ranks with different heads and over stages."""
    efficiency = coefficient(coefficients, "serving", "global", "kv_efficiency")
    share = pl.col("kv_replication") / (tensor_ranks() * pipeline_stages())
    return pl.col("_b") * pl.col("kv_step_bytes") * share / (pl.col("bandwidth_gb_s") * GIGA * efficiency)


def _exchange_s(coefficients: pl.DataFrame, tokens: pl.Expr) -> pl.Expr:
    """Seconds of all-reduce volume for `tokens` tokens through all layers; 0 without tensor parallel."""
    efficiency = coefficient(coefficients, "serving", "global", "link_efficiency")
    volume_s = all_reduce_bytes(tokens) / (pl.col("link_one_way_gb_s") * GIGA * efficiency)
    return pl.when(tensor_ranks() > 1).then(volume_s).otherwise(0.0)


def _step_s(coefficients: pl.DataFrame) -> pl.Expr:
    """Seconds in which every served request gets one token."""
    base_s = coefficient(coefficients, "serving", "global", "step") * 1e-3
    layer_s = coefficient(coefficients, "serving", "global", "layer") * MICROSECOND_S
    sequence_s = coefficient(coefficients, "serving", "global", "sequence") * MICROSECOND_S
    latency_s = coefficient(coefficients, "serving", "global", "all_reduce_latency") * MICROSECOND_S
    stages = pipeline_stages()
    layers = pl.col("n_layers") / stages
    host_s = base_s + layers * layer_s + pl.col("_b") * sequence_s
    doublings = tensor_ranks().cast(pl.Float64).log(2.0)
    latency = 2.0 * layers * doublings * latency_s
    exchange = _exchange_s(coefficients, pl.col("_b")) / stages
    work_s = _smooth_max(pl.col("_weight_s"), pl.col("_compute_s"))
    return stages * (host_s + work_s + pl.col("_kv_s") + latency + exchange)


def _prompt_compute_s(coefficients: pl.DataFrame, requests: pl.Expr) -> pl.Expr:
    """Seconds of matrix products and attention for the prompts of `requests` requests."""
    efficiency = coefficient(coefficients, "serving", "global", "prefill_compute_efficiency")
    matrix_flops = FLOPS_PER_PARAMETER * pl.col("body_active_params") * pl.col("input_tokens")
    flops = requests * (matrix_flops + pl.col("attention_prefill_flops"))
    return flops / (pl.col("n_gpus") * pl.col("serving_tflops") * TERA * efficiency)


def _prompts_s(coefficients: pl.DataFrame, requests: pl.Expr, compute_s: pl.Expr) -> pl.Expr:
    """Seconds to read the prompts of `requests` requests."""
    base_s = coefficient(coefficients, "serving", "global", "step") * 1e-3
    layer_s = coefficient(coefficients, "serving", "global", "layer") * MICROSECOND_S
    tokens = requests * pl.col("input_tokens")
    work_s = _smooth_max(compute_s, _weight_s(coefficients, tokens))
    return work_s + base_s + pl.col("n_layers") * layer_s + _exchange_s(coefficients, tokens)


def _output_tok_s() -> pl.Expr:
    made = pl.col("served_concurrency") * pl.col("output_tokens")
    return made / (pl.col("prefill_s") + pl.col("output_tokens") * pl.col("step_s"))


def _ttft_ms(coefficients: pl.DataFrame) -> pl.Expr:
    """Own prompt, one step of the others, the server's floor, and the wait for a place when more ask than
    fit.

    The wait is Little's law: requests that wait / requests finished per second.
    """
    floor_ms = coefficient(coefficients, "serving", "ttft_floor", "mid")
    others_s = pl.when(pl.col("served_concurrency") > 1).then(pl.col("step_s")).otherwise(0.0)
    waiting = pl.col("concurrency") - pl.col("served_concurrency")
    wait_s = waiting * pl.col("output_tokens") / pl.col("output_tok_s")
    return 1000.0 * (pl.col("_own_s") + others_s + wait_s) + floor_ms


def _limited_by() -> pl.Expr:
    """memory: not one sequence fits; capacity: fewer fit than asked; else the larger of operations and
    bytes.
    """
    compute_s = pl.col("_prompt_compute_s") + pl.col("output_tokens") * pl.col("_compute_s")
    bytes_s = pl.col("output_tokens") * (pl.col("_weight_s") + pl.col("_kv_s"))
    return (
        pl.when(pl.col("max_concurrency") < 1)
        .then(pl.lit("memory"))
        .when(pl.col("max_concurrency") < pl.col("concurrency"))
        .then(pl.lit("capacity"))
        .when(compute_s > bytes_s)
        .then(pl.lit("compute"))
        .when(compute_s <= bytes_s)
        .then(pl.lit("bandwidth"))
        .cast(LIMITED_BY)
    )
