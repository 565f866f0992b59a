"""Bytes of the KV cache and of recurrent state that a sequence needs, to the byte, by kind of attention.

What an engine reserves beyond the need (pages, padding, slots) does not belong here. Formulas: K and V per
cached position and KV head; MLA keeps one latent (DeepSeek-V2 report, 2.1; llama.cpp keeps no V); an indexer
adds one key (DeepSeek-V3.2); windows and chunks stop at their length; layers that share keys and values keep
none; DeepSeek-V4 keeps one entry per `kv_compression` positions beside its window. Recurrent state is kept in
4-byte floats, convolution state in `conv_bytes` per element. Checked against `tests/golden/kv_examples.csv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

STATE_BYTES: Final = 4  # recurrent state is float32 in every engine we know
CONV_BYTES: Final = 2  # convolution state in the compute type; llama.cpp keeps 4
HALF_STATE_BYTES: Final = 2
_CACHED: Final = ("full", "sliding", "chunked", "mla")
# What an engine's format adds to elements x bytes, null where it adds nothing: scales per token and KV head,
# or per row of keys or values of a layer, bytes of an indexer's key, whole bytes of a sparse latent, and the
# architectures ("a;b") whose recurrent state it keeps in 16 bit.
ENGINE_SETTINGS: Final[dict[str, type[pl.DataType]]] = {
    "k_bytes_per_head": pl.Float64,
    "v_bytes_per_head": pl.Float64,
    "bytes_per_row": pl.Float64,
    "index_bytes_per_element": pl.Float64,
    "sparse_latent_bytes": pl.Float64,
    "half_state_types": pl.String,
}


def kv_cache_bytes(
    layers: pl.LazyFrame,
    contexts: Sequence[int],
    element_bytes: tuple[float, float],
    conv_bytes: int = CONV_BYTES,
    n_gpus: int = 1,
) -> pl.LazyFrame:
    """Cache and state of ONE sequence per model and context.

    `layers`: the published table (or any frame with its columns); `element_bytes`: bytes per element of K and
    of V. With `n_gpus` > 1 the result is per GPU under tensor parallel. Columns out: model, context_tokens,
    kv_bytes, state_bytes, kv_read_bytes (what one token reads with a full cache, and the state it reads and
    writes).
    """
    settings = pl.LazyFrame({"context_tokens": contexts}, schema={"context_tokens": pl.Int64}).with_columns(
        k_bytes_per_element=pl.lit(float(element_bytes[0])),
        v_bytes_per_element=pl.lit(float(element_bytes[1])),
        n_gpus=pl.lit(n_gpus, dtype=pl.Int64),
    )
    return cache_bytes_by_setting(layers, settings, conv_bytes).select(
        "model", "context_tokens", "kv_bytes", "state_bytes", "kv_read_bytes"
    )


def cache_bytes_by_setting(
    layers: pl.LazyFrame, settings: pl.LazyFrame, conv_bytes: int = CONV_BYTES
) -> pl.LazyFrame:
    """As `kv_cache_bytes` for every row of `settings` (context_tokens, k_bytes_per_element,
    v_bytes_per_element, n_gpus, those of `ENGINE_SETTINGS` that hold, and any other columns, which are kept):
    one row per model and setting, bytes per GPU. `layers` has model_type where `half_state_types` is given.
    """
    keys = list(settings.collect_schema())
    count = pl.col("n_layers").cast(pl.Int64)
    per_layer = with_engine_settings(layers.join(settings, how="cross")).with_columns(
        kv=layer_kv_bytes(cached_positions()),
        kv_read=layer_kv_bytes(read_positions(), reads=True),
        state=layer_state_bytes(conv_bytes),
    )
    return per_layer.group_by(["model", *keys], maintain_order=True).agg(
        kv_bytes=(pl.col("kv") * count).sum(),
        state_bytes=(pl.col("state") * count).sum(),
        kv_read_bytes=((pl.col("kv_read") + 2 * pl.col("state")) * count).sum(),
    )


def with_engine_settings(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Layers beside settings, ready for the formulas below: what `ENGINE_SETTINGS` or model_type lacks is
    null.
    """
    return with_missing(frame, {**ENGINE_SETTINGS, "model_type": pl.String})


def with_missing(frame: pl.LazyFrame, columns: Mapping[str, type[pl.DataType]]) -> pl.LazyFrame:
    """The frame with those of `columns` that it lacks added as nulls."""
    known = frame.collect_schema()
    return frame.with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in columns.items() if name not in known
    )


def cached_positions() -> pl.Expr:
    """Positions a layer keeps: the context, at most the window or chunk."""
    return pl.min_horizontal("context_tokens", "window_tokens")


def read_positions() -> pl.Expr:
    """Positions a new token attends to: those kept, at most the top-k that an indexer selects."""
    return pl.min_horizontal("context_tokens", "window_tokens", "selected_tokens")


def layer_kv_bytes(positions: pl.Expr, reads: bool = False) -> pl.Expr:
    """KV bytes of one layer on one GPU. `reads`: what one token reads, where a sparse layer reads less than
    it keeps.

    Columns in: those of `layers`, context_tokens, k_bytes_per_element, v_bytes_per_element, n_gpus.
    """
    compressed = pl.col("kv_compression").is_not_null()
    compressed_or_window = compressed | (pl.col("v_head_dim") == 0)
    return (
        pl.when(~pl.col("mixer").is_in(_CACHED) | pl.col("shares_kv").fill_null(False))
        .then(0)
        .when(pl.col("mixer") == "mla")
        .then(latent_cache_bytes(positions))
        .when(compressed_or_window)
        .then(compressed_cache_bytes(reads))
        .otherwise(head_cache_bytes(positions))
        .fill_null(0)
    )


def kv_heads_per_gpu() -> pl.Expr:
    """KV heads on one rank under tensor parallel; heads are replicated when there are more GPUs than heads.

    vLLM config/model.py: max(1, heads / tensor_parallel_size).
    """
    heads, ranks = pl.col("n_kv_heads").cast(pl.Int64), pl.col("n_gpus")
    return pl.max_horizontal(pl.lit(1, dtype=pl.Int64), (heads + ranks - 1) // ranks)


def head_cache_bytes(positions: pl.Expr) -> pl.Expr:
    """K and V of every KV head at every kept position, with the scales that a format keeps per head."""
    heads = positions * kv_heads_per_gpu()
    keys, values = heads * pl.col("k_head_dim").cast(pl.Int64), heads * pl.col("v_head_dim").cast(pl.Int64)
    elements = _bytes(keys, "k_bytes_per_element") + _bytes(values, "v_bytes_per_element")
    per_head = pl.col("k_bytes_per_head").fill_null(0) + pl.col("v_bytes_per_head").fill_null(0)
    per_position = heads * per_head + 2 * positions * pl.col("bytes_per_row").fill_null(0)
    return elements + per_position.ceil().cast(pl.Int64)


def cross_cache_bytes(image_positions: pl.Expr) -> pl.Expr:
    """K and V of a cross-attention layer, which caches image positions and no text: 0 for text alone, else
    per image.
    """
    return pl.when(pl.col("mixer") == "cross").then(head_cache_bytes(image_positions)).otherwise(0)


def latent_cache_bytes(positions: pl.Expr) -> pl.Expr:
    """One latent per position, whole on every GPU, and one indexer key per position of the whole context."""
    return latent_bytes(positions) + index_key_bytes(cached_positions())


def latent_bytes(positions: pl.Expr) -> pl.Expr:
    """Latents of that many positions; sparse ones take whole bytes where the engine lays them out so.

    vLLM v1/attention/backends/mla/flashmla_sparse.py of 0.33.0: 512 fp8, 16 bytes of scales, 128 of rope.
    """
    plain = _bytes(positions * pl.col("latent_dim").cast(pl.Int64), "k_bytes_per_element")
    is_sparse = pl.col("index_head_dim").is_not_null() & pl.col("sparse_latent_bytes").is_not_null()
    laid_out = (positions * pl.col("sparse_latent_bytes")).ceil().cast(pl.Int64)
    row = (positions * pl.col("bytes_per_row").fill_null(0)).ceil().cast(pl.Int64)
    return pl.when(is_sparse).then(laid_out).otherwise(plain + row)


def index_key_bytes(positions: pl.Expr) -> pl.Expr:
    """Keys of a sparse layer's indexer; in the cache's type unless the engine has a type of its own for them.

    vLLM and SGLang: fp8 and one f32 scale per 128 elements (model_executor/models/deepseek_v2.py of vLLM
    0.33.0, mem_cache/memory_pool.py of SGLang 0.5.23).
    """
    elements = positions * pl.col("index_head_dim").cast(pl.Int64).fill_null(0)
    own = pl.coalesce("index_bytes_per_element", "k_bytes_per_element")
    return (elements * own).ceil().cast(pl.Int64)


def compressed_cache_bytes(reads: bool = False) -> pl.Expr:
    """DeepSeek-V4: a window of whole entries, one entry per `kv_compression` positions, indexer keys where it
    has them.

    Keys and values are one tensor. A token reads all entries, or those its indexer selects. Every GPU holds
    all of it.
    """
    width = pl.col("k_head_dim").cast(pl.Int64)
    entries = (pl.col("context_tokens") // pl.col("kv_compression").cast(pl.Int64)).fill_null(0)
    index_keys = entries * pl.col("index_head_dim").cast(pl.Int64).fill_null(0)
    seen = pl.min_horizontal(entries, pl.col("selected_tokens")) if reads else entries
    kept = (cached_positions() + seen) * width
    return _bytes(kept, "k_bytes_per_element") + _bytes(index_keys, "k_bytes_per_element")


def layer_state_bytes(conv_bytes: int = CONV_BYTES) -> pl.Expr:
    """Recurrent and convolution state of one layer on one GPU; heads and channels are shared out among the
    ranks.
    """
    ranks = pl.col("n_gpus")
    state = (pl.col("f32_state_elements").cast(pl.Int64) + ranks - 1) // ranks
    convolution = (pl.col("conv_state_elements").cast(pl.Int64) + ranks - 1) // ranks
    return state * state_element_bytes() + convolution * conv_bytes


def state_element_bytes() -> pl.Expr:
    """Bytes per element of recurrent state: 4, or 2 for the architectures an engine keeps in the model's
    type.
    """
    is_half = pl.col("half_state_types").str.split(";").list.contains(pl.col("model_type"))
    return pl.when(is_half.fill_null(False)).then(HALF_STATE_BYTES).otherwise(STATE_BYTES)


def _bytes(elements: pl.Expr, element_bytes: str) -> pl.Expr:
    """Whole bytes of that many elements; densities are dyadic fractions, so the product is exact."""
    return (elements * pl.col(element_bytes)).ceil().cast(pl.Int64)


def f32_state_elements() -> pl.Expr:
    """Elements of recurrent state per sequence and layer, from the shapes of `estimator.layer_geometry`.

    Linear attention keeps key_dim x value_dim per value head; Mamba keeps inner x state.
    """
    delta = (
        pl.col("linear_value_heads").fill_null(0)
        * pl.col("linear_key_dim").fill_null(0)
        * pl.col("linear_value_dim").fill_null(0)
    )
    return delta + pl.col("mamba_inner").fill_null(0) * pl.col("mamba_state").fill_null(0)


def conv_state_elements() -> pl.Expr:
    """Elements of convolution state per sequence and layer: (kernel - 1) past inputs of every channel.

    Channels: q, k and v of linear attention; inner plus 2 x groups x state of Mamba-2, inner of Mamba-1;
    hidden_size of LFM2's short convolution. Lightning attention has none (its kernel is 0).
    """
    keys = pl.col("linear_key_heads").fill_null(0) * pl.col("linear_key_dim").fill_null(0)
    values = pl.col("linear_value_heads").fill_null(0) * pl.col("linear_value_dim").fill_null(0)
    groups = pl.col("mamba_groups").fill_null(0)
    mamba = pl.col("mamba_inner").fill_null(0) + 2 * groups * pl.col("mamba_state").fill_null(0)
    short = pl.when(pl.col("mixer") == "conv").then(pl.col("hidden_size")).otherwise(0)
    past = pl.max_horizontal(pl.col("conv_kernel").fill_null(0) - 1, pl.lit(0, dtype=pl.Int64))
    return (2 * keys + values + mamba + short) * past
