"""The law no estimate may break: distinct bytes at the highest credible bandwidth, operations at top rate.

Nothing fitted belongs here. Weights that fit a last-level cache would be an exception where a bandwidth of
that cache is cited; no source states one, so the exception is not implemented and such cells are flagged
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl

from estimator.calibration import gpu_value
from estimator.parallel import tensor_ranks

Cache = Literal["full", "start"]
FLOPS_PER_PARAMETER = 2.0


def bound_work() -> list[pl.Expr]:
    """The GPU-independent part of the bound, as Float32 columns: what one token must touch and compute.

    Reads n_gpus, parallel_mode, dense_read_bytes (body and head, once), expert_read_bytes (K routed experts),
    kv_read_bytes and kv_read_start_bytes (cache full and empty: windows capped, latent and shared caches
    once, recurrent state read and written), kv_replication, active_params, attention_decode_flops (null
    counts as 0, which keeps the bound a bound). Gives `bound_bytes, bound_start_bytes, bound_flops,
    bound_start_flops`: per rank under tensor parallel, summed over the stages of a layer split (which gains
    nothing).
    """
    ranks = tensor_ranks()
    weights = pl.col("dense_read_bytes") + pl.col("expert_read_bytes")
    matrix_flops = FLOPS_PER_PARAMETER * pl.col("active_params")
    columns = {
        "bound_bytes": (weights + pl.col("kv_read_bytes") * pl.col("kv_replication")) / ranks,
        "bound_start_bytes": (weights + pl.col("kv_read_start_bytes") * pl.col("kv_replication")) / ranks,
        "bound_flops": (matrix_flops + pl.col("attention_decode_flops").fill_null(0.0)) / ranks,
        "bound_start_flops": matrix_flops / ranks,
    }
    return [expression.cast(pl.Float32).alias(name) for name, expression in columns.items()]


def bound_s(cache: Cache = "full", gpu: Mapping[str, float | None] | None = None) -> pl.Expr:
    """Least seconds per token: the larger of the time for the bytes and the time for the operations.

    Reads the columns of `bound_work` and bound_s_per_byte, bound_s_per_flop of `gpu_coefficients` (or `gpu`).
    """
    names = ("bound_bytes", "bound_flops") if cache == "full" else ("bound_start_bytes", "bound_start_flops")
    bytes_s = pl.col(names[0]) * gpu_value("bound_s_per_byte", gpu)
    flops_s = pl.col(names[1]) * gpu_value("bound_s_per_flop", gpu)
    # in this order an unknown number of bytes leaves the bound unknown
    return pl.when(bytes_s < flops_s).then(flops_s).otherwise(bytes_s)


def decode_tok_s_bound(cache: Cache = "full", gpu: Mapping[str, float | None] | None = None) -> pl.Expr:
    """Most tokens per second that physics allows. Null where the bandwidth is unknown."""
    return 1 / bound_s(cache, gpu)
