"""What a public speed page would say of any GPU and model: its arithmetic to the printed digit, and no
better.

Kept beside the real estimates for comparison. The page takes parameters x bits / 8 in decimal GB, adds a
cache in GiB and 1 for the framework, keeps 12 % of the memory free, and divides bandwidth by what one token
reads. All 42 rows of the page for a V100 32 GB and an 8B model come out (tests/golden). Better physics does
not belong here.
"""

from __future__ import annotations

from typing import Final

import polars as pl

TIER_BPW: Final = {
    "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K_M": 5.6, "Q4_K_M": 4.8, "IQ4_XS": 4.25, "IQ3_K": 3.5, "IQ3_XXS": 3.02,
}  # fmt: skip
CONTEXTS_TOKENS: Final = (4096, 16384, 32768, 65536, 131072, 262144)
STATUSES: Final = ("fits", "tight", "no_fit")
ADVICE: Final = ("single_gpu", "quantize_kv", "smaller_quant_offload_or_two_gpus")
TIER: Final = pl.Enum(list(TIER_BPW))
STATUS: Final = pl.Enum(STATUSES)
ADVICE_CODE: Final = pl.Enum(ADVICE)
CITATION: Final = "tokcube_study/reference-page"

FRAMEWORK_GB: Final = 1.0
USABLE_SHARE: Final = 0.88
TIGHT_ABOVE: Final = 0.75  # share of the usable memory
LOW_EFFICIENCY: Final = (0.60, 0.45)  # of weights, of cache
HIGH_EFFICIENCY: Final = (0.85, 0.60)
_GIB: Final = 1024.0**3
# Sums such as 4.25 + 0.5625 + 1 are exact in binary, but 8 x 6.56 / 8 is not: ties are found within this.
_TIE: Final = 1e-9


def rule_of_thumb(gpus: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """Every GPU x model x tier x context of the page. Not rounded: `as_printed` rounds.

    `gpus`: gpu, memory_gib, bandwidth_gb_s (of one GPU). `models`: model, params_billions
    (`nominal_billions`), kv_f16_bytes_per_token (`full_attention_kv_f16_bytes_per_token`),
    native_context_tokens (null: never beyond).

    Returns gpu, model, tier (Enum), context_tokens (Int32), weights_gb (decimal GB), kv_cache_gib (GiB),
    total_gb (their plain sum and 1), usable_gb, status (fits, tight, no_fit), decode_tok_s_low,
    decode_tok_s_high (tok/s, null when it does not fit), beyond_native, advice, citation. Source:
    `tokcube_study/reference-page`.
    """
    tiers = pl.LazyFrame(
        {"tier": list(TIER_BPW), "_bpw": list(TIER_BPW.values())}, schema_overrides={"tier": TIER}
    )
    contexts = pl.LazyFrame({"context_tokens": CONTEXTS_TOKENS}, schema={"context_tokens": pl.Int32})
    recipes = models.join(tiers, how="cross", maintain_order="left_right").join(contexts, how="cross")
    return (
        gpus.select("gpu", "memory_gib", "bandwidth_gb_s")
        .join(recipes, how="cross", maintain_order="left_right")
        .with_columns(
            (pl.col("params_billions") * pl.col("_bpw") / 8).alias("weights_gb"),
            (pl.col("kv_f16_bytes_per_token") * pl.col("context_tokens") / _GIB).alias("kv_cache_gib"),
            (pl.col("memory_gib") * USABLE_SHARE).alias("usable_gb"),
        )
        .with_columns((pl.col("weights_gb") + pl.col("kv_cache_gib") + FRAMEWORK_GB).alias("total_gb"))
        .with_columns(_status().alias("status"))
        .select(
            "gpu",
            "model",
            "tier",
            "context_tokens",
            "weights_gb",
            "kv_cache_gib",
            "total_gb",
            "usable_gb",
            "status",
            _decode_tok_s(*LOW_EFFICIENCY).alias("decode_tok_s_low"),
            _decode_tok_s(*HIGH_EFFICIENCY).alias("decode_tok_s_high"),
            (pl.col("context_tokens") > pl.col("native_context_tokens"))
            .fill_null(False)
            .alias("beyond_native"),
            _advice().alias("advice"),
            pl.lit(CITATION).alias("citation"),
        )
    )


def as_printed(table: pl.LazyFrame) -> pl.LazyFrame:
    """The numbers as the page prints them: weights and total to 0.1, cache to 0.01, speeds whole; halves go
    up.
    """
    return table.with_columns(
        half_up("weights_gb", 1),
        half_up("kv_cache_gib", 2),
        half_up("total_gb", 1),
        half_up("decode_tok_s_low", 0),
        half_up("decode_tok_s_high", 0),
    )


def half_up(column: str, digits: int) -> pl.Expr:
    """A column of positive numbers rounded to `digits` decimals, halves up (4.25 -> 4.3)."""
    scale = 10.0**digits
    # The last rounding only takes away what the division leaves in the sixteenth digit.
    return ((pl.col(column) * scale + 0.5 + _TIE).floor() / scale).round(digits).alias(column)


def nominal_billions() -> pl.Expr:
    """Billions of parameters as people say it: the page counts an "8B" model as 8.0, not 8.19.

    Reads model and total_params. The size in the model's name where it stands alone there (`-8B-`, `-1.7B`)
    and is within 15 % of the true count; else the true count rounded to 0.1.
    """
    exact = pl.col("total_params") / 1e9
    named = pl.col("model").str.extract(r"(?i)[-_](\d+(?:\.\d+)?)b(?:[-_.]|$)", 1).cast(pl.Float64)
    agrees = ((named - exact).abs() <= 0.15 * exact).fill_null(False)
    return pl.when(agrees).then(named).otherwise(((exact * 10 + 0.5 + _TIE).floor() / 10).round(1))


def full_attention_kv_f16_bytes_per_token(layers: pl.LazyFrame) -> pl.LazyFrame:
    """Cache bytes per token at 16 bit that grow with the context: full and latent attention layers only.

    `layers`: model, n_layers, mixer, n_kv_heads, k_head_dim, v_head_dim, latent_dim, shares_kv. Returns
    model, kv_f16_bytes_per_token (0 without such layers, null when one of them does not state its sizes).
    """
    grows = pl.col("mixer").cast(pl.String).is_in(["full", "mla"]) & ~pl.col("shares_kv").fill_null(False)
    is_latent = pl.col("mixer").cast(pl.String) == "mla"
    by_head = pl.col("n_kv_heads") * (pl.col("k_head_dim") + pl.coalesce("v_head_dim", "k_head_dim"))
    elements = (
        pl.when(is_latent & pl.col("latent_dim").is_not_null()).then(pl.col("latent_dim")).otherwise(by_head)
    )
    per_token = pl.when(grows).then(2.0 * pl.col("n_layers") * elements).otherwise(0.0)
    return (
        layers.with_columns(per_token.alias("_bytes"))
        .group_by("model")
        .agg(
            pl.when(pl.col("_bytes").has_nulls())
            .then(None)
            .otherwise(pl.col("_bytes").sum())
            .alias("kv_f16_bytes_per_token")
        )
        .sort("model")
    )


def _status() -> pl.Expr:
    return (
        pl.when(pl.col("total_gb") > pl.col("usable_gb"))
        .then(pl.lit("no_fit"))
        .when(pl.col("total_gb") > TIGHT_ABOVE * pl.col("usable_gb"))
        .then(pl.lit("tight"))
        .otherwise(pl.lit("fits"))
        .cast(STATUS)
    )


def _decode_tok_s(weight_efficiency: float, kv_efficiency: float) -> pl.Expr:
    """Bandwidth / (weights / a + cache / b); GB and GiB are added as they are, because the page does."""
    read = pl.col("weights_gb") / weight_efficiency + pl.col("kv_cache_gib") / kv_efficiency
    return pl.when(pl.col("status") != "no_fit").then(pl.col("bandwidth_gb_s") / read)


def _advice() -> pl.Expr:
    """The page's advice follows its status: one GPU will do, quantize the cache, or it does not fit."""
    return pl.col("status").to_physical().cast(pl.UInt8).cat.to(ADVICE_CODE)
