"""Joins accepted measurements to cube rows and says how much evidence an estimate has (`basis`). Pure
expressions.
"""

from __future__ import annotations

import polars as pl

EMPTY_CACHE_DEPTH_TOKENS = 1500
CONTEXT_TOLERANCE = 0.25
SETTING = ("gpu", "n_gpus", "model", "framework", "backend", "quant", "kv_dtype")
BASES = ("measured", "device", "family", "engine", "spec_only")
BASIS_TYPE = pl.Enum(BASES)


def accepted_decode(anchors: pl.LazyFrame) -> pl.LazyFrame:
    """Measured decode speeds that may stand beside an estimate: accepted, one request, with a speed and a
    depth.
    """
    return anchors.filter(pl.col("state") == "accepted", pl.col("decode_tok_s").is_not_null())


def accepted_serving(anchors: pl.LazyFrame) -> pl.LazyFrame:
    """Measured throughput of many requests that counts as evidence for an engine on a device."""
    return anchors.filter(pl.col("state") == "accepted", pl.col("output_tok_s").is_not_null())


def measured_start(anchors: pl.LazyFrame) -> pl.LazyFrame:
    """Median speed per setting with an almost empty cache (depth under 1,500 tokens).

    Out: the setting, measured_start_tok_s, n_start_anchors. Unknown depth counts as empty: benchmark defaults
    are.
    """
    shallow = pl.col("depth_tokens").fill_null(0) < EMPTY_CACHE_DEPTH_TOKENS
    return (
        accepted_decode(anchors)
        .filter(shallow)
        .group_by(SETTING)
        .agg(measured_start_tok_s=pl.col("decode_tok_s").median(), n_start_anchors=pl.len().cast(pl.Int32))
    )


def measured_full(anchors: pl.LazyFrame, contexts: pl.LazyFrame) -> pl.LazyFrame:
    """Median speed per setting and context with the cache filled to within 25 % of that context.

    `contexts`: one column context_tokens. Out: setting, context_tokens, measured_full_tok_s, n_full_anchors.
    """
    depth = pl.col("depth_tokens").cast(pl.Float64)
    near = (depth / pl.col("context_tokens") - 1.0).abs() <= CONTEXT_TOLERANCE
    return (
        accepted_decode(anchors)
        .filter(pl.col("depth_tokens") >= EMPTY_CACHE_DEPTH_TOKENS)
        .join(contexts, how="cross")
        .filter(near)
        .group_by(*SETTING, "context_tokens")
        .agg(measured_full_tok_s=pl.col("decode_tok_s").median(), n_full_anchors=pl.len().cast(pl.Int32))
    )


def evidence(anchors: pl.LazyFrame, gpus: pl.LazyFrame) -> pl.LazyFrame:
    """For every gpu x engine x backend: how near the nearest measurement is.

    `anchors`: accepted ones (`accepted_decode`, `accepted_serving`) with engine added; `gpus`: gpu, family.
    Out: gpu, engine, backend, device_measured, family_measured, engine_measured (booleans); rows for every
    GPU and every engine and backend that was ever measured.
    """
    seen = (
        anchors.join(gpus.select("gpu", "family"), on="gpu")
        .select("gpu", pl.col("family").cast(pl.String), "engine", pl.col("backend").cast(pl.String))
        .unique()
    )
    stacks = seen.select("engine", "backend").unique()
    by_device = seen.select("gpu", "engine", "backend").unique().with_columns(device_measured=pl.lit(True))
    by_family = seen.select("family", "engine", "backend").unique().with_columns(family_measured=pl.lit(True))
    return (
        gpus.select("gpu", pl.col("family").cast(pl.String))
        .join(stacks, how="cross")
        .join(by_device, on=["gpu", "engine", "backend"], how="left")
        .join(by_family, on=["family", "engine", "backend"], how="left")
        .select(
            "gpu",
            "engine",
            "backend",
            pl.col("device_measured").fill_null(False),
            pl.col("family_measured").fill_null(False),
            engine_measured=pl.lit(True),
        )
        .sort("gpu", "engine", "backend")
    )
