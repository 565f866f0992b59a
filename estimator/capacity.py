"""Does it fit: parts added up per GPU, compared with what the driver and the engine really leave. Pure
expressions.
"""

from __future__ import annotations

import polars as pl

BYTES_PER_GIB = 2**30
GIB_DECIMALS = 3
TIGHT_HEADROOM_GIB = 0.5
TIGHT_HEADROOM_SHARE = 0.03
VERDICTS = ("comfortable", "tight", "no_fit")
VERDICT_TYPE = pl.Enum(VERDICTS)


def gib(bytes_column: str) -> pl.Expr:
    """A byte column in GiB, rounded to 0.001 GiB (1 MiB): what the cube publishes."""
    return (pl.col(bytes_column).cast(pl.Float64) / BYTES_PER_GIB).round(GIB_DECIMALS)


def total_gib() -> pl.Expr:
    """Weights, KV cache and runtime per GPU, added as published, so that the parts of a row add up to its
    total.
    """
    return (pl.col("weights_gib") + pl.col("kv_cache_gib") + pl.col("runtime_gib")).round(GIB_DECIMALS)


def kept_free_units(kv_units: pl.Expr) -> pl.Expr:
    """What an engine leaves free beside its cache, in units of 0.001 GiB; 0 for others.

    Engines that give the cache a share of the memory that is free after weights and buffers (`share_of_free`)
    need cache / share of it: what they take is no need, but the rest stays out of reach. `kv_units`: the
    cache in the same units. Source: TensorRT-LLM KvCacheConfig.free_gpu_memory_fraction, LMDeploy
    cache_max_entry_count (`memory.fraction` in sources/frameworks).
    """
    return (
        (kv_units * (1.0 / pl.col("share_of_free").cast(pl.Float32).cast(pl.Float64) - 1.0))
        .round()
        .fill_null(0.0)
    )


def claimed_gib() -> pl.Expr:
    """total_gib, and what the engine leaves free beside kv_cache_gib: what has to be there. 32 bits, as
    published.
    """
    total, cache = (
        (pl.col(name).cast(pl.Float64) * 10**GIB_DECIMALS).round() for name in ("total_gib", "kv_cache_gib")
    )
    claimed = ((total + kept_free_units(cache)) / 10**GIB_DECIMALS).cast(pl.Float32)
    # the engines that keep nothing free are most rows: these are not worked out again
    published = pl.col("total_gib").cast(pl.Float32)
    return pl.when(pl.col("share_of_free").is_null()).then(published).otherwise(claimed)


def tight_above_gib(usable_gib: pl.Expr) -> pl.Expr:
    """The total above which a fit is tight: less than 0.5 GiB or 3 % of the usable memory is left, the
    larger.

    Source: this project's rule; engines' own totals scatter by 1 to 3 % between versions.
    """
    return usable_gib - pl.max_horizontal(pl.lit(TIGHT_HEADROOM_GIB), usable_gib * TIGHT_HEADROOM_SHARE)


def verdict(total: pl.Expr, usable_gib: pl.Expr) -> pl.Expr:
    """`comfortable`, `tight` or `no_fit` as an Enum; null where the usable memory is (no such system for this
    GPU).
    """
    code = (total > tight_above_gib(usable_gib)).cast(pl.UInt8) + (total > usable_gib).cast(pl.UInt8)
    return code.cat.to(VERDICT_TYPE)


def engine_usable_gib(usable_gib: pl.Expr, memory_gib: pl.Expr) -> pl.Expr:
    """What the engine lets itself use: engines with a memory fraction take it of the total memory, never more
    than the driver offers. Reads `memory_utilization` (null where the engine takes what it needs).

    Source: vLLM 0.33.0 v1/worker/gpu_worker.py:753 (requested = total x utilization).
    """
    budget = (
        pl.when(pl.col("memory_utilization").is_null())
        .then(None)
        .otherwise(memory_gib * pl.col("memory_utilization"))
    )
    # min_horizontal skips nulls: no budget leaves what the driver offers, but without a driver there is
    # nothing.
    return pl.when(usable_gib.is_not_null()).then(pl.min_horizontal(usable_gib, budget))
