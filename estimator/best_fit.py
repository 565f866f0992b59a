"""The short answer of the cube: per GPU, count, model, framework and context, the densest format that fits."""

from __future__ import annotations

import polars as pl

KEY = ("gpu", "n_gpus", "model", "framework", "context_tokens")


def fidelity(quants: pl.LazyFrame) -> pl.LazyFrame:
    """quant, fidelity: formats ranked by the bits they keep per weight; more bits rank higher, names break ties.

    `quants`: quant, body_bpw. Formats of unknown density rank lowest.
    """
    return (
        quants.select("quant", bits=pl.col("body_bpw").fill_null(0.0))
        .sort("bits", "quant")
        .with_row_index("fidelity")
        .select("quant", pl.col("fidelity").cast(pl.UInt32))
    )


def best_fit(estimates: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """One row per `KEY` where anything fits: a comfortable fit before a tight one, then the most bits per weight, then
    the larger cache type (16 bits before 8), then the faster backend.

    `estimates`: rows of the cube; `ranks`: `fidelity`, its quant typed as in the cube. Sorted by `KEY`.
    """
    fits = estimates.filter(pl.col("verdict") != "no_fit").join(ranks, on="quant")
    order = [pl.col("verdict").to_physical(), -pl.col("fidelity").cast(pl.Int32), -pl.col("kv_cache_gib"),
             -pl.col("decode_tok_s_mid"), pl.col("backend").to_physical()]  # fmt: skip
    chosen = ("backend", "quant", "kv_dtype", "verdict", "total_gib", "decode_tok_s_mid", "decode_start_tok_s", "basis")
    return fits.group_by(KEY).agg(pl.col(name).sort_by(order).first() for name in chosen).sort(KEY)
