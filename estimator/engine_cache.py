"""What engines other than llama.cpp reserve for one request: blocks, groups of layers, shares, steps.

An engine's `cache_layout` says how it lays the cache out: `block_groups` (vLLM: layers in equal groups that
draw blocks of one size), `window_share` (SGLang: windows get a fixed share of the context's positions),
`whole` (windows are kept for the whole context) or `layers` (every layer alone, windows in whole steps). What
attention needs is `attention_state`; splitting over GPUs beyond tensor parallelism is `kv_cache`.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.attention_state import (
    CONV_BYTES,
    cached_positions,
    head_cache_bytes,
    index_key_bytes,
    latent_bytes,
    layer_kv_bytes,
    layer_state_bytes,
    with_engine_settings,
    with_missing,
)

LAYOUTS: Final = ("block_groups", "window_share", "whole", "layers")
FLAGS: Final = ("block_flag", "window_flag", "chunk_flag", "state_flag", "latent_flag")
RULES: Final[dict[str, type[pl.DataType]]] = {
    "cache_layout": pl.String,
    "block_tokens": pl.Int64,
    "in_flight_tokens": pl.Int64,
    "window_margin_tokens": pl.Int64,
    "window_share": pl.Float64,
    "keeps_chunks_whole": pl.Boolean,
    "latent_block_tokens": pl.Int64,
    "state_pages": pl.Int64,
    "index_bytes_per_element": pl.Float64,
    "half_state_types": pl.String,
    **dict.fromkeys(FLAGS, pl.String),
}
SHAPE: Final = (
    "model", "model_type", "mixer", "n_kv_heads", "k_head_dim", "v_head_dim", "window_tokens", "shares_kv",
    "latent_dim", "index_head_dim", "kv_compression", "f32_state_elements", "conv_state_elements",
)  # fmt: skip
# vLLM makes all groups as large as the largest kind of layer when that is less than half larger than the
# smallest (v1/core/kv_cache_planning.py of 0.33.0).
PADDED_GROUP_RATIO: Final = 1.5
_KEY: Final = ("setting", "model")


def engine_cache_rules(frameworks: pl.LazyFrame, steps: pl.LazyFrame) -> pl.LazyFrame:
    """Per framework, the columns of `RULES`: how it lays the cache out, from the tables frameworks and
    framework_steps.

    in_flight_tokens: prompt tokens of the smallest GPUs' step x batches that run at once.
    """
    prefill = steps.filter((pl.col("setting") == "prefill_tokens") & (pl.col("at_least") == 0)).select(
        "framework", prefill_tokens=pl.col("value").cast(pl.Int64)
    )
    stated = {f"cache_{name}": dtype for name, dtype in RULES.items() if name != "cache_layout"}
    stated |= {"cache_layout": pl.String, "cache_batches_in_flight": pl.Int64}
    facts = with_missing(frameworks, stated).join(prefill, on="framework", how="left")
    batches = pl.col("cache_batches_in_flight").cast(pl.Int64).fill_null(1)
    renamed = [
        pl.col(f"cache_{name}").cast(dtype).alias(name)
        for name, dtype in RULES.items()
        if name not in ("cache_layout", "block_tokens", "in_flight_tokens")
    ]
    return facts.select(
        "framework",
        *renamed,
        cache_layout=pl.col("cache_layout").cast(pl.String).fill_null("layers"),
        block_tokens=pl.coalesce("profile_kv_block_tokens", "profile_context_step_tokens", pl.lit(1)).cast(
            pl.Int64
        ),
        in_flight_tokens=(pl.col("prefill_tokens") * batches).fill_null(0),
    )


def reserved_cache(layers: pl.LazyFrame, settings: pl.LazyFrame) -> pl.LazyFrame:
    """Bytes that the engine reserves per rank: model, setting -> reserved_bytes, reserve_flag.

    `layers`: the table with model_type; `settings`: setting (an id), context_tokens, k_bytes_per_element,
    v_bytes_per_element, n_gpus (tensor ranks), the columns of `RULES` and of `ENGINE_SETTINGS`. reserve_flag
    names the flag that changes the bytes most: of windows, chunks, state, a latent on several ranks, blocks.
    """
    runs = layers.group_by(SHAPE).agg(pl.col("n_layers").cast(pl.Int64).sum())
    rows = with_engine_settings(runs.join(settings, how="cross")).with_columns(
        token_bytes=token_bytes(),
        state_bytes=layer_state_bytes(CONV_BYTES),
        alone_bytes=layer_kv_bytes(cached_positions()),
        window=window_of_engine(),
    )
    grouped = pl.col("cache_layout") == "block_groups"
    return pl.concat([_block_groups(rows.filter(grouped)), _layer_by_layer(rows.filter(~grouped))]).join(
        rows.group_by(_KEY).agg(reserve_flag=_flag()), on=_KEY
    )


def token_bytes() -> pl.Expr:
    """Bytes that one more position takes in one layer on one rank; 0 where it takes none or not evenly
    (compressed attention).
    """
    one = pl.lit(1, dtype=pl.Int64)
    uneven = pl.col("kv_compression").is_not_null() | (pl.col("v_head_dim") == 0)
    has_none = ~pl.col("mixer").is_in(["full", "sliding", "chunked", "mla"])
    return (
        pl.when(has_none | pl.col("shares_kv").fill_null(False))
        .then(0)
        .when(pl.col("mixer") == "mla")
        .then(latent_bytes(one) + index_key_bytes(one))
        .when(uneven)
        .then(0)
        .otherwise(head_cache_bytes(one))
        .fill_null(0)
    )


def window_of_engine() -> pl.Expr:
    """Positions a layer may forget beyond; null where the engine keeps all (chunks, unless it is told to)."""
    kept_whole = (pl.col("mixer") == "chunked") & pl.col("keeps_chunks_whole").fill_null(False)
    return pl.when(~kept_whole).then(pl.col("window_tokens").cast(pl.Int64))


def attention_block_tokens() -> pl.Expr:
    """Tokens in one block of an attention layer of vLLM.

    The engine's own, or raised until a page of attention is at least as large as a layer's recurrent state:
    step x ceil(state / (step x bytes per token)). Reads block_tokens, latent_block_tokens, is_latent,
    largest_state_bytes and largest_token_bytes. Source: vLLM platforms/interface.py of 0.33.0,
    _align_hybrid_block_size.
    """
    step = (
        pl.when("is_latent")
        .then(pl.max_horizontal("block_tokens", "latent_block_tokens"))
        .otherwise("block_tokens")
    )
    of_step = step * pl.col("largest_token_bytes")
    raised = step * _ceil_div(pl.col("largest_state_bytes"), of_step)
    is_hybrid = (pl.col("largest_state_bytes") > 0) & (pl.col("largest_token_bytes") > 0)
    return pl.when(is_hybrid).then(pl.max_horizontal(raised, "block_tokens")).otherwise("block_tokens")


def request_blocks() -> pl.Expr:
    """Blocks one request takes in one layer: of its whole context, of a window with what is in flight, or
    state pages.

    Windows: ceil(min(W - 1 + in flight, C) / block) + 1. Source: vLLM v1/kv_cache_interface.py of 0.33.0.
    """
    context, block = pl.col("context_tokens"), pl.col("layer_block_tokens")
    in_window = pl.min_horizontal(pl.col("window") - 1 + pl.col("in_flight_tokens"), context)
    return (
        pl.when("is_state")
        .then(pl.col("state_pages").fill_null(1))
        .when(pl.col("window").is_not_null())
        .then(_ceil_div(in_window, block) + 1)
        .otherwise(_ceil_div(context, block))
    )


def _block_groups(rows: pl.LazyFrame) -> pl.LazyFrame:
    """vLLM: layers of one kind take whole blocks; layers of several kinds stand in groups of equal size whose
    blocks are all as large as the largest page (v1/core/kv_cache_planning.py of 0.33.0).
    """
    kinds = _kinds(rows).with_columns(
        largest_state_bytes=pl.col("kind_bytes").filter("is_state").max().over(_KEY).fill_null(0),
        largest_token_bytes=pl.col("kind_bytes").filter(~pl.col("is_state")).max().over(_KEY).fill_null(0),
        is_latent=pl.col("is_latent").any().over(_KEY),
        n_kinds=pl.struct("is_state", "window").n_unique().over(_KEY),
    )
    paged = (
        kinds.with_columns(block=attention_block_tokens())
        .with_columns(
            own_page=pl.when("is_state").then("kind_bytes").otherwise(pl.col("kind_bytes") * pl.col("block"))
        )
        .with_columns(page=pl.col("own_page").max().over(_KEY))
        .with_columns(group_layers=_group_layers(), layer_block_tokens=_stretched_block())
    )
    is_uniform = pl.col("n_kinds") == 1
    pages = request_blocks()
    alike = pl.col("n_layers") * pl.col("own_page") * pages
    in_groups = (
        _ceil_div(pl.col("n_layers"), pl.col("group_layers"))
        * pl.col("group_layers")
        * pl.col("page")
        * pages
    )
    # One kind of layer needs no common page, so its blocks are not stretched and its state is kept once.
    return (
        paged.with_columns(
            layer_block_tokens=pl.when(is_uniform).then("block").otherwise("layer_block_tokens"),
            state_pages=pl.when(is_uniform).then(1).otherwise("state_pages"),
        )
        .with_columns(bytes=pl.when(is_uniform).then(alike).otherwise(in_groups))
        .group_by(_KEY)
        .agg(reserved_bytes=pl.col("bytes").sum())
        .join(_uneven_layers(rows), on=_KEY, how="right")
        .select(*_KEY, reserved_bytes=pl.col("reserved_bytes").fill_null(0) + pl.col("uneven_bytes"))
    )


def _kinds(rows: pl.LazyFrame) -> pl.LazyFrame:
    """One row per kind of layer that is alike for the engine: its bytes per token, or per state page."""
    shared = (
        *_KEY, "context_tokens", "block_tokens", "in_flight_tokens", "latent_block_tokens", "state_pages",
    )  # fmt: skip
    cached = rows.filter(pl.col("token_bytes") > 0).select(
        *shared,
        "window",
        "n_layers",
        is_state=pl.lit(False),
        is_latent=pl.col("mixer") == "mla",
        kind_bytes="token_bytes",
        head_dims=pl.concat_str("k_head_dim", "v_head_dim", separator="/", ignore_nulls=True),
    )
    states = rows.filter(pl.col("state_bytes") > 0).select(
        *shared,
        "n_layers",
        window=pl.lit(None, dtype=pl.Int64),
        is_state=pl.lit(True),
        is_latent=pl.lit(False),
        kind_bytes="state_bytes",
        head_dims=pl.lit(None, dtype=pl.String),
    )
    alike = (*shared, "window", "is_state", "is_latent", "kind_bytes", "head_dims")
    return pl.concat([cached, states], how="diagonal").group_by(alike).agg(pl.col("n_layers").sum())


def _group_layers() -> pl.Expr:
    fewest, most = pl.col("n_layers").min().over(_KEY), pl.col("n_layers").max().over(_KEY)
    return pl.when(most < fewest * PADDED_GROUP_RATIO).then(most).otherwise(fewest)


def _stretched_block() -> pl.Expr:
    """A smaller page holds more tokens when the common page is a multiple of it, and is padded otherwise."""
    page, own = pl.col("page"), pl.col("own_page")
    return pl.when(page % own == 0).then(pl.col("block") * (page // own)).otherwise("block")


def _uneven_layers(rows: pl.LazyFrame) -> pl.LazyFrame:
    """What layers take that have no bytes per token (compressed attention): their need."""
    uneven = pl.when(pl.col("token_bytes") == 0).then("alone_bytes").otherwise(0)
    return rows.group_by(_KEY).agg(uneven_bytes=(uneven * pl.col("n_layers")).sum())


def _layer_by_layer(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Engines that lay out every layer for itself: whole blocks of the context, windows by their rule."""
    block, context = pl.col("block_tokens"), pl.col("context_tokens")
    whole = _ceil_div(context, block) * block
    slack = pl.col("window") + pl.col("window_margin_tokens").fill_null(0)
    stepped = pl.min_horizontal(_ceil_div(slack, block) * block, whole)
    # SGLang gives windows a share of the positions of the full layers (model_executor/pool_configurator.py of
    # 0.5.23); without full layers they are the pool.
    has_full = (pl.col("window").is_null() & (pl.col("token_bytes") > 0)).any().over(_KEY)
    share = (context * pl.col("window_share")).ceil().cast(pl.Int64)
    shared = pl.when(has_full).then(pl.max_horizontal(share, pl.min_horizontal("window", context)))
    layout = pl.col("cache_layout")
    positions = (
        pl.when(pl.col("window").is_null() | (layout == "whole"))
        .then(whole)
        .when(layout == "window_share")
        .then(shared.otherwise(whole))
        .otherwise(stepped)
    )
    cached = pl.when(pl.col("token_bytes") > 0).then(pl.col("token_bytes") * positions)
    per_layer = cached.otherwise("alone_bytes") + pl.col("state_bytes") * pl.col("state_pages").fill_null(1)
    return rows.group_by(_KEY).agg(reserved_bytes=(per_layer * pl.col("n_layers")).sum())


def _flag() -> pl.Expr:
    # Windows alone are kept as windows whatever the flag says: it puts them on a par with full layers.
    is_window = pl.col("mixer") == "sliding"
    beside_others = is_window.any() & ((pl.col("token_bytes") > 0) & ~is_window).any()
    cases = [
        (beside_others, "window_flag"),
        ((pl.col("mixer") == "chunked").any(), "chunk_flag"),
        ((pl.col("state_bytes") > 0).any(), "state_flag"),
        (((pl.col("mixer") == "mla") & (pl.col("n_gpus") > 1)).any(), "latent_flag"),
        (pl.lit(True), "block_flag"),
    ]
    return pl.coalesce(pl.when(holds).then(pl.col(flag).first()) for holds, flag in cases)


def _ceil_div(value: pl.Expr, by: pl.Expr) -> pl.Expr:
    return (value + by - 1) // by
