"""The short answer of the cube: per GPU, count, model, framework and context, the densest format that
fits.
"""

from __future__ import annotations

import polars as pl

KEY = ("gpu", "n_gpus", "model", "framework", "context_tokens")
COLUMNS = (*KEY, "backend", "quant", "kv_dtype", "verdict", "total_gib", "decode_tok_s_mid",
           "decode_start_tok_s", "basis")  # fmt: skip

# What is preferred is packed into one integer, because the least of one column per group is what 10^8 rows
# can afford.
_FIDELITY_BITS, _CACHE_BITS, _SPEED_BITS, _ROW_BITS = 10, 8, 24, 21
_SPEED_STEPS_PER_TOK_S = 64


def fidelity(quants: pl.LazyFrame) -> pl.LazyFrame:
    """quant, fidelity: formats ranked by the bits they keep per weight; more bits rank higher, names break
    ties.

    `quants`: quant, body_bpw. Formats of unknown density rank lowest.
    """
    return (
        quants.select("quant", bits=pl.col("body_bpw").fill_null(0.0))
        .sort("bits", "quant")
        .with_row_index("fidelity")
        .select("quant", pl.col("fidelity").cast(pl.UInt32))
    )


def best_fit(estimates: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """One row per `KEY` where anything fits: a comfortable fit before a tight one, then the most bits per
    weight, then a 16-bit cache before smaller ones, then the faster backend.

    `estimates`: one GPU's rows of the cube, at most 2^21; `ranks`: `fidelity`, its quant typed as in the
    cube. Sorted by `KEY`.
    """
    fits = (
        estimates.select(COLUMNS)
        .with_row_index("row")
        .filter(pl.col("verdict") != "no_fit")
        .join(ranks, on="quant", how="left", maintain_order="left")
    )
    best = fits.group_by(_group().alias("group")).agg(_preference().min().alias("least"))
    row = (pl.col("least") % (1 << _ROW_BITS)).cast(pl.UInt32).alias("row")
    return fits.join(best.select(row), on="row", how="semi").select(COLUMNS).sort(KEY)


def _group() -> pl.Expr:
    """Model, framework, n_gpus and context as one integer: grouping by one is twice as fast as by four."""
    packed = pl.col("model").to_physical().cast(pl.UInt64)
    for bits, value in (
        (12, pl.col("framework").to_physical()),
        (8, pl.col("n_gpus")),
        (24, pl.col("context_tokens")),
    ):
        packed = packed * (1 << bits) + value.cast(pl.UInt64)
    return packed


def _preference() -> pl.Expr:
    """Smaller is better: tight, missing bits, smaller caches, slowness, and the row itself, which breaks
    ties.
    """
    tight = (pl.col("verdict") == "tight").cast(pl.UInt64)
    missing_bits = ((1 << _FIDELITY_BITS) - 1) - pl.col("fidelity").cast(pl.UInt64)
    smaller_cache = (
        pl.when(pl.col("kv_dtype") == "f16").then(0).otherwise(1 + pl.col("kv_dtype").to_physical())
    )
    most = (1 << _SPEED_BITS) - 1
    speed = (
        (pl.col("decode_tok_s_mid").cast(pl.Float64) * _SPEED_STEPS_PER_TOK_S).clip(0, most).cast(pl.UInt64)
    )
    packed = tight
    for bits, value in (
        (_FIDELITY_BITS, missing_bits),
        (_CACHE_BITS, smaller_cache.cast(pl.UInt64)),
        (_SPEED_BITS, most - speed),
        (_ROW_BITS, pl.col("row").cast(pl.UInt64)),
    ):
        packed = packed * (1 << bits) + value
    return packed
