"""KV cache per GPU as engines hold it: what one request needs, and what the engine reserves for it.

What attention needs is decided in `attention_state`; here an engine's window cells, context steps and state
types are applied, and the cache is split over GPUs. Pure polars.
"""

from __future__ import annotations

import polars as pl

from estimator.attention_state import (
    CONV_BYTES,
    cache_bytes_by_setting,
    cached_positions,
    layer_kv_bytes,
    layer_state_bytes,
)
from estimator.llama_cpp_context import DEFAULT_UBATCH_TOKENS, fullest_context_bytes, with_llama_cpp_layers
from estimator.parallel import fullest_stage_fraction, pipeline_stages, tensor_ranks

LLAMA_CPP_CONV_BYTES = 4
# What changes bytes: many frameworks share one setting, so each is computed once.
_SETTING = (
    "context_tokens", "k_bytes_per_element", "v_bytes_per_element", "is_llama_cpp", "slots", "ubatch_tokens",
    "flash_attention", "window_slack_tokens", "window_step_tokens",
)  # fmt: skip


def window_cells(window_tokens: pl.Expr, context_tokens: pl.Expr) -> pl.Expr:
    """Positions an engine keeps of a sliding window or chunk: the windows of its slots and the tokens in
    flight, in whole steps.

    Reads slots, window_slack_tokens and window_step_tokens of the engine. vLLM: ceil((W - 1 + in flight) /
    block) + 1 blocks (v1/kv_cache_interface.py of 0.33.0). Null windows stay null. What llama.cpp keeps is
    decided in `llama_cpp_context`.
    """
    step = pl.col("window_step_tokens")
    cells = (window_tokens * pl.col("slots") + pl.col("window_slack_tokens") + step - 1) // step * step
    return pl.when(window_tokens.is_not_null()).then(pl.min_horizontal(cells, context_tokens))


def engine_windows(frameworks: pl.LazyFrame, steps: pl.LazyFrame) -> pl.LazyFrame:
    """Per framework, how it keeps windows and state: slots, window_slack_tokens, window_step_tokens,
    is_llama_cpp, ubatch_tokens, flash_attention.

    `frameworks` and `steps`: the tables frameworks and framework_steps. An engine that states neither a block
    nor a context step keeps exactly the window; one that states no slots has one.
    """
    in_flight = steps.filter((pl.col("setting") == "prefill_tokens") & (pl.col("at_least") == 0)).select(
        "framework", in_flight_tokens=pl.col("value").cast(pl.Int64)
    )
    block = pl.col("profile_kv_block_tokens").cast(pl.Int64)
    is_llama_cpp = (pl.col("activation_rule").cast(pl.String) == "llama_cpp_compute_buffer").fill_null(False)
    stated = pl.col("profile_ubatch_tokens").cast(pl.Int64).fill_null(DEFAULT_UBATCH_TOKENS)
    micro_batch = pl.when(is_llama_cpp).then(stated)
    paged = pl.when(pl.col("in_flight_tokens").is_not_null()).then(pl.col("in_flight_tokens") + block - 1)
    return frameworks.join(in_flight, on="framework", how="left").select(
        "framework",
        is_llama_cpp=is_llama_cpp,
        ubatch_tokens=micro_batch.fill_null(0),
        flash_attention=pl.col("profile_flash_attention").fill_null(True),
        slots=pl.col("profile_slots").cast(pl.Int64).fill_null(1),
        window_slack_tokens=pl.coalesce(paged, micro_batch, pl.lit(0, pl.Int64)),
        window_step_tokens=pl.coalesce(
            block, pl.col("profile_context_step_tokens").cast(pl.Int64), pl.lit(1, pl.Int64)
        ),
    )


def kv_cache(
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    storages: pl.LazyFrame,
    contexts: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `kv_cache`: model x framework x kv_dtype x context_tokens x n_gpus -> bytes.

    `models`: model, n_layers, model_citation; `layers`, `llama_cpp_layers`: the tables; `storages`:
    framework, parallel_mode, kv_dtype, k_bytes_per_element, v_bytes_per_element, kv_dtype_citation and the
    columns of `engine_windows`. Out: needed_bytes and reserved_bytes on the fullest GPU, read_bytes and
    start_read_bytes (what one token reads on all GPUs together, replicated heads and latents on each of them:
    with the cache full, and with it empty, which is recurrent state only).
    """
    settings = _settings(storages, contexts, n_gpus)
    # Distinct settings are computed once; what each rank reads is summed over the ranks after the join.
    rows = pl.concat(
        [
            _needed(layers, settings.filter("is_llama_cpp"), LLAMA_CPP_CONV_BYTES),
            _needed(layers, settings.filter(~pl.col("is_llama_cpp")), CONV_BYTES),
        ]
    )
    keys = [*_SETTING, "ranks"]
    wide = (
        storages.join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .filter((pl.col("n_gpus") == 1) | (pl.col("parallel_mode") != "none"))
        .with_columns(
            pl.col("context_tokens").cast(pl.Int64),
            ranks=tensor_ranks().cast(pl.Int64),
            stages=pipeline_stages().cast(pl.Int64),
        )
    )
    stage = fullest_stage_fraction()
    joined = wide.join(rows.rename({"n_gpus": "ranks"}), on=keys).join(models, on="model")
    allocated = _llama_cpp_reserved(llama_cpp_layers, wide)
    reserved = _reserved(layers, settings.filter(~pl.col("is_llama_cpp"))).rename({"n_gpus": "ranks"})
    filled = (
        joined.join(allocated, on=["model", *_SETTING, "stages"], how="left")
        .join(reserved, on=["model", *keys], how="left")
        .with_columns(needed=(pl.col("needed_bytes") * stage).ceil().cast(pl.Int64))
    )
    shared_out = (pl.col("reserved_bytes") * stage).ceil().cast(pl.Int64)
    return filled.select(
        "model",
        "framework",
        "kv_dtype",
        pl.col("context_tokens").cast(pl.Int32),
        pl.col("n_gpus").cast(pl.Int16),
        # the need is shared out evenly, llama.cpp's cache by whole layers: no device needs more than it holds
        needed_bytes=pl.min_horizontal("needed", "allocated_bytes"),
        reserved_bytes=pl.coalesce("allocated_bytes", shared_out),
        read_bytes=pl.col("read_bytes") * pl.col("ranks"),
        start_read_bytes=pl.col("start_read_bytes") * pl.col("ranks"),
        model_citation="model_citation",
        kv_dtype_citation="kv_dtype_citation",
    ).sort("model", "framework", "kv_dtype", "context_tokens", "n_gpus")


def _llama_cpp_reserved(llama_cpp_layers: pl.LazyFrame, wide: pl.LazyFrame) -> pl.LazyFrame:
    """What llama.cpp allocates on the fullest device: model, the settings, stages, allocated_bytes."""
    settings = (
        wide.filter("is_llama_cpp")
        .select(*_SETTING, "stages")
        .unique(maintain_order=True)
        .with_columns(n_gpus="stages", kv_unified=pl.lit(True), swa_full=pl.lit(False))
    )
    allocated = fullest_context_bytes(with_llama_cpp_layers(llama_cpp_layers), settings)
    return allocated.select("model", *_SETTING, "stages", allocated_bytes="context_bytes")


def _settings(storages: pl.LazyFrame, contexts: pl.LazyFrame, n_gpus: pl.LazyFrame) -> pl.LazyFrame:
    """Distinct settings that change bytes: many frameworks share one, so each is computed once."""
    return (
        storages.join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .with_columns(pl.col("context_tokens").cast(pl.Int64))
        .select(*_SETTING, tensor_ranks().cast(pl.Int64).alias("n_gpus"))
        .unique(maintain_order=True)
    )


def _needed(layers: pl.LazyFrame, settings: pl.LazyFrame, conv_bytes: int) -> pl.LazyFrame:
    """Bytes per rank that a request needs and that a token reads, by the model's layers."""
    return cache_bytes_by_setting(layers, settings, conv_bytes).select(
        "model",
        *settings.collect_schema(),
        needed_bytes=pl.col("kv_bytes") + pl.col("state_bytes"),
        start_read_bytes=2 * pl.col("state_bytes"),
        read_bytes=pl.col("kv_read_bytes"),
    )


def _reserved(layers: pl.LazyFrame, settings: pl.LazyFrame) -> pl.LazyFrame:
    """Bytes per rank that an engine with windows of whole blocks reserves."""
    widened = layers.join(settings, how="cross").with_columns(
        window_tokens=window_cells(pl.col("window_tokens").cast(pl.Int64), pl.col("context_tokens"))
    )
    per_layer = layer_kv_bytes(cached_positions()) + layer_state_bytes(CONV_BYTES) * pl.col("slots")
    return widened.group_by("model", *settings.collect_schema(), maintain_order=True).agg(
        reserved_bytes=(per_layer * pl.col("n_layers").cast(pl.Int64)).sum()
    )
