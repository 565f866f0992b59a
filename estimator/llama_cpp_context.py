"""Context memory that llama.cpp allocates: KV cache cells and recurrent state, to the byte, per device.

Everything is allocated when the context is made, whatever the request fills later. From llama.cpp at
0c1e57098: src/llama-context.cpp (rounding of the context), llama-kv-cache.cpp, llama-kv-cache-iswa.cpp,
llama-kv-cache-dsa.cpp, llama-memory-recurrent.cpp, llama-model.cpp (which layer goes to which device).
"""

from __future__ import annotations

from typing import Final

import polars as pl

CELL_STEP: Final = 256
DEFAULT_UBATCH_TOKENS: Final = 512  # common/common.h; for wrappers that state none of their own
STATE_BYTES: Final = 4
_ATTENDS: Final = ("full", "sliding", "chunked", "mla")

SETTINGS: Final = (
    "context_tokens",
    "ubatch_tokens",
    "slots",
    "kv_unified",
    "k_bytes_per_element",
    "v_bytes_per_element",
    "flash_attention",
    "swa_full",
    "n_gpus",
)


def _padded(count: pl.Expr) -> pl.Expr:
    return (count + CELL_STEP - 1) // CELL_STEP * CELL_STEP


def sequence_cells() -> pl.Expr:
    """Cells of one stream: the context in whole steps; without a unified cache an equal part per slot, in
    whole steps. Reads context_tokens, slots, kv_unified (llama-context.cpp:290-304).
    """
    context = _padded(pl.col("context_tokens").cast(pl.Int64))
    return pl.when("kv_unified").then(context).otherwise(_padded(context // pl.col("slots")))


def streams() -> pl.Expr:
    """Streams of cells: one when the slots share a unified cache, else one per slot."""
    return pl.when("kv_unified").then(pl.lit(1, pl.Int64)).otherwise(pl.col("slots").cast(pl.Int64))


def window_cells(window_tokens: pl.Expr) -> pl.Expr:
    """Cells of one stream of a windowed cache: pad(min(cells, W x slots in the stream + ubatch), 256).

    The whole context with swa_full. Null windows stay null (llama-kv-cache-iswa.cpp).
    """
    sharing = pl.when("kv_unified").then(pl.col("slots").cast(pl.Int64)).otherwise(1)
    kept = window_tokens.cast(pl.Int64) * sharing + pl.col("ubatch_tokens").cast(pl.Int64)
    windowed = _padded(pl.min_horizontal(sequence_cells(), kept))
    return pl.when(window_tokens.is_not_null()).then(
        pl.when("swa_full").then(sequence_cells()).otherwise(windowed)
    )


def layer_cells() -> pl.Expr:
    """Cells of one layer over all streams. Reads used_window_tokens and the settings."""
    return pl.coalesce(window_cells(pl.col("used_window_tokens")), sequence_cells()) * streams()


def with_llama_cpp_layers(layers: pl.LazyFrame) -> pl.LazyFrame:
    """The table `llama_cpp_layers` with what its caches hold.

    Adds first_layer and all_layers (positions among the layers of the file), used_window_tokens, is_latent,
    key_width, index_width, value_width and widest_value (of the whole model) in elements per cell,
    keeps_cells and state_elements.
    """
    return (
        layers.sort("model", "group")
        .with_columns(pl.col("n_layers").cast(pl.Int64))
        .with_columns(
            first_layer=pl.col("n_layers").cum_sum().over("model", order_by="group") - pl.col("n_layers"),
            all_layers=pl.col("n_layers").sum().over("model") + pl.col("prediction_layers").cast(pl.Int64),
            used_window_tokens=pl.when("uses_window").then("window_tokens").cast(pl.Int64),
            is_latent=(pl.col("mixer") == "mla") & pl.col("caches_latent"),
        )
        .with_columns(
            key_width=_key_width(),
            index_width=pl.col("index_head_dim").cast(pl.Int64).fill_null(0),
            value_width=_value_width(),
            keeps_cells=_attends() & ~pl.col("shares_kv").fill_null(False),
        )
        .with_columns(
            widest_value=pl.col("value_width").max().over("model"),
            state_elements=pl.col("f32_state_elements").cast(pl.Int64) + pl.col("conv_state_elements"),
        )
    )


def _cache_heads() -> pl.Expr:
    return pl.coalesce("n_kv_heads", "n_heads").cast(pl.Int64)


def _key_width() -> pl.Expr:
    per_head = _cache_heads() * pl.col("k_head_dim").cast(pl.Int64)
    width = pl.when("is_latent").then(pl.col("latent_dim").cast(pl.Int64)).otherwise(per_head)
    return pl.when(_attends()).then(width.fill_null(0)).otherwise(0)


def _value_width() -> pl.Expr:
    per_head = _cache_heads() * pl.col("v_head_dim").cast(pl.Int64)
    return pl.when(_attends() & ~pl.col("is_latent")).then(per_head.fill_null(0)).otherwise(0)


def _attends() -> pl.Expr:
    return pl.col("mixer").is_in(_ATTENDS)


def layers_on_device(device: pl.Expr) -> pl.Expr:
    """Layers of the run that device number `device` (from 0) of n_gpus equal ones holds.

    Layers and the output are dealt out as all_layers + 1 units: unit i goes to device floor(i x n_gpus /
    (all_layers + 1)) (llama-model.cpp get_layer_buft_list, split by equal free memory). Reads first_layer,
    n_layers, all_layers, n_gpus.
    """
    first, count = pl.col("first_layer"), pl.col("n_layers")
    end = pl.min_horizontal(first + count, _first_unit(device + 1))
    return pl.max_horizontal(end - pl.max_horizontal(first, _first_unit(device)), pl.lit(0, pl.Int64))


def _first_unit(device: pl.Expr) -> pl.Expr:
    devices = pl.col("n_gpus").cast(pl.Int64)
    return (device * (pl.col("all_layers") + 1) + devices - 1) // devices


def layer_context_bytes() -> pl.Expr:
    """Bytes of one layer: its cells, and its state once per slot, in 4-byte floats.

    Without flash attention values lie transposed, every layer as wide as the widest of the model. An indexer
    keeps one key per position of the whole context; compressed attention (DeepSeek-V4) one entry per
    `kv_compression` positions beside its window.
    """
    value_width = pl.when("flash_attention").then("value_width").otherwise("widest_value")
    has_values = pl.col("value_width") > 0
    whole = sequence_cells() * streams()
    entries = (whole // pl.col("kv_compression").cast(pl.Int64)).fill_null(0) * pl.col("key_width")
    indexed = pl.when(pl.col("kv_compression").is_null()).then(whole).otherwise(
        whole // pl.col("kv_compression").cast(pl.Int64)
    ) * pl.col("index_width")
    kept = layer_cells() * pl.col("key_width") + entries + indexed
    keys = kept * pl.col("k_bytes_per_element")
    values = (
        pl.when(has_values).then(layer_cells() * value_width * pl.col("v_bytes_per_element")).otherwise(0.0)
    )
    cells = pl.when("keeps_cells").then(keys + values).otherwise(0.0)
    state = pl.col("state_elements") * STATE_BYTES * pl.col("slots").cast(pl.Int64)
    return cells.ceil().cast(pl.Int64) + state


def fullest_context_bytes(cached: pl.LazyFrame, settings: pl.LazyFrame) -> pl.LazyFrame:
    """As `context_bytes`, on the device that holds most."""
    columns = list(settings.collect_schema())
    return (
        context_bytes(cached, settings)
        .group_by("model", *columns, maintain_order=True)
        .agg(pl.col("context_bytes").max())
    )


def context_bytes(cached: pl.LazyFrame, settings: pl.LazyFrame) -> pl.LazyFrame:
    """Context memory per model, setting and device.

    `cached`: from `with_llama_cpp_layers`; `settings`: the columns `SETTINGS` and any others. Out: model, the
    columns of `settings`, device (from 0), context_bytes.
    """
    columns = list(settings.collect_schema())
    devices = settings.with_columns(device=pl.int_ranges(0, pl.col("n_gpus").cast(pl.Int64))).explode(
        "device"
    )
    return (
        cached.join(devices, how="cross")
        .with_columns(bytes=layer_context_bytes() * layers_on_device(pl.col("device")))
        .group_by("model", *columns, "device", maintain_order=True)
        .agg(context_bytes=pl.col("bytes").sum())
    )
