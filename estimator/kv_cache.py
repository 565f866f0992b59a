"""KV cache per GPU as engines hold it: what one request needs, and what the engine reserves for it.

What attention needs is decided in `attention_state`; here an engine's window cells, context steps and state
types are applied, and the cache is split over GPUs. Pure polars.
"""

from __future__ import annotations

import polars as pl

from estimator.attention_state import (
    CONV_BYTES,
    ENGINE_SETTINGS,
    cache_bytes_by_setting,
    with_missing,
)
from estimator.engine_cache import RULES, engine_cache_rules, reserved_cache
from estimator.llama_cpp_context import DEFAULT_UBATCH_TOKENS, fullest_context_bytes, with_llama_cpp_layers
from estimator.parallel import fullest_stage_fraction, pipeline_stages, tensor_ranks

LLAMA_CPP_CONV_BYTES = 4
# What changes bytes: many frameworks share one setting, so each is computed once.
_SETTING = (
    "context_tokens", "k_bytes_per_element", "v_bytes_per_element", "is_llama_cpp", "slots", "ubatch_tokens",
    "flash_attention", "window_slack_tokens", "window_step_tokens",
)  # fmt: skip


def engine_windows(frameworks: pl.LazyFrame, steps: pl.LazyFrame) -> pl.LazyFrame:
    """Per framework, how it keeps windows and state: slots, window_slack_tokens, window_step_tokens,
    is_llama_cpp, ubatch_tokens, flash_attention, and the columns of `engine_cache.RULES`.

    `frameworks` and `steps`: the tables frameworks and framework_steps. The first three are read for
    llama.cpp and its wrappers alone. An engine that states no slots has one.
    """
    is_llama_cpp = (pl.col("activation_rule").cast(pl.String) == "llama_cpp_compute_buffer").fill_null(False)
    stated = pl.col("profile_ubatch_tokens").cast(pl.Int64).fill_null(DEFAULT_UBATCH_TOKENS)
    micro_batch = pl.when(is_llama_cpp).then(stated)
    own = frameworks.select(
        "framework",
        is_llama_cpp=is_llama_cpp,
        ubatch_tokens=micro_batch.fill_null(0),
        flash_attention=pl.col("profile_flash_attention").fill_null(True),
        slots=pl.col("profile_slots").cast(pl.Int64).fill_null(1),
        window_slack_tokens=pl.coalesce(micro_batch, pl.lit(0, pl.Int64)),
        window_step_tokens=pl.coalesce(
            pl.col("profile_context_step_tokens").cast(pl.Int64), pl.lit(1, pl.Int64)
        ),
    )
    return own.join(engine_cache_rules(frameworks, steps), on="framework")


def kv_cache(
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    storages: pl.LazyFrame,
    contexts: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `kv_cache`: model x framework x kv_dtype x context_tokens x n_gpus -> bytes.

    `models`: model, model_type, n_layers, model_citation; `layers`, `llama_cpp_layers`: the tables;
    `storages`: framework, parallel_mode, kv_dtype, k_bytes_per_element, v_bytes_per_element,
    kv_dtype_citation, the columns of `engine_windows`, of `engine_cache.RULES` and of
    `attention_state.ENGINE_SETTINGS` (those missing count as nulls). Out: needed_bytes and reserved_bytes
    on the fullest GPU, read_bytes and start_read_bytes (what one token reads on all GPUs together,
    replicated heads and latents on each of them: with the cache full, and with it empty, which is recurrent
    state only), reserve_flag (which flag changes what is reserved).
    """
    wide = (
        with_missing(storages, RULES | ENGINE_SETTINGS)
        .join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .filter((pl.col("n_gpus") == 1) | (pl.col("parallel_mode") != "none"))
        .with_columns(
            pl.col("context_tokens").cast(pl.Int64),
            ranks=tensor_ranks().cast(pl.Int64),
            stages=pipeline_stages().cast(pl.Int64),
        )
    )
    typed = layers.join(models.select("model", "model_type"), on="model")
    rows = pl.concat(
        [
            _llama_cpp_rows(layers, llama_cpp_layers, wide.filter("is_llama_cpp")),
            _engine_rows(typed, wide.filter(~pl.col("is_llama_cpp"))),
        ],
        how="diagonal",
    )
    stage = fullest_stage_fraction()
    needed = (pl.col("needed_bytes") * stage).ceil().cast(pl.Int64)
    reserved = (pl.col("reserved_bytes") * stage).ceil().cast(pl.Int64)
    return (
        rows.join(models, on="model")
        .select(
            "model",
            "framework",
            "kv_dtype",
            pl.col("context_tokens").cast(pl.Int32),
            pl.col("n_gpus").cast(pl.Int16),
            # the need is shared out evenly, llama.cpp's cache by whole layers: no device needs more than it
            # holds
            needed_bytes=pl.min_horizontal(needed, "allocated_bytes"),
            reserved_bytes=pl.coalesce("allocated_bytes", reserved),
            read_bytes=pl.col("read_bytes") * pl.col("ranks"),
            start_read_bytes=pl.col("start_read_bytes") * pl.col("ranks"),
            reserve_flag="reserve_flag",
            model_citation="model_citation",
            kv_dtype_citation="kv_dtype_citation",
        )
        .sort("model", "framework", "kv_dtype", "context_tokens", "n_gpus")
    )


def _llama_cpp_rows(layers: pl.LazyFrame, llama_cpp_layers: pl.LazyFrame, wide: pl.LazyFrame) -> pl.LazyFrame:
    """What llama.cpp and its wrappers need per rank and allocate on the fullest device (`allocated_bytes`),
    beside the columns of `wide`.
    """
    keys = [*_SETTING, "ranks"]
    settings = wide.select(*_SETTING, n_gpus="ranks").unique(maintain_order=True)
    needed = _needed(layers, settings, LLAMA_CPP_CONV_BYTES).rename({"n_gpus": "ranks"})
    flags = layers.group_by("model").agg(
        has_window=(pl.col("mixer").is_in(["sliding", "chunked"])).any(),
        has_state=(pl.col("f32_state_elements") > 0).any(),
    )
    flag = (
        pl.when("has_window").then("window_flag").when("has_state").then("state_flag").otherwise("block_flag")
    )
    return (
        wide.join(needed, on=keys)
        .join(_llama_cpp_allocated(llama_cpp_layers, wide), on=["model", *_SETTING, "stages"])
        .join(flags, on="model")
        .with_columns(reserve_flag=flag)
    )


def _llama_cpp_allocated(llama_cpp_layers: pl.LazyFrame, wide: pl.LazyFrame) -> pl.LazyFrame:
    """What llama.cpp allocates on the fullest device: model, the settings, stages, allocated_bytes."""
    settings = (
        wide.select(*_SETTING, "stages")
        .unique(maintain_order=True)
        .with_columns(n_gpus="stages", kv_unified=pl.lit(True), swa_full=pl.lit(False))
    )
    allocated = fullest_context_bytes(with_llama_cpp_layers(llama_cpp_layers), settings)
    return allocated.select("model", *_SETTING, "stages", allocated_bytes="context_bytes")


def _needed(layers: pl.LazyFrame, settings: pl.LazyFrame, conv_bytes: int) -> pl.LazyFrame:
    """Bytes per rank that a request needs and that a token reads, by the model's layers."""
    return cache_bytes_by_setting(layers, settings, conv_bytes).select(
        "model",
        *settings.collect_schema(),
        needed_bytes=pl.col("kv_bytes") + pl.col("state_bytes"),
        start_read_bytes=2 * pl.col("state_bytes"),
        read_bytes=pl.col("kv_read_bytes"),
    )


def _engine_rows(layers: pl.LazyFrame, wide: pl.LazyFrame) -> pl.LazyFrame:
    """What the other engines need and reserve per rank: each distinct setting is computed once."""
    keys = ["context_tokens", "ranks", "k_bytes_per_element", "v_bytes_per_element",
            *dict.fromkeys([*ENGINE_SETTINGS, *RULES])]  # fmt: skip
    # Sorted, because the settings are laid out once for every branch below and must be numbered alike.
    distinct = wide.select(keys).unique().sort(keys).with_columns(setting=pl.int_range(pl.len()))
    settings = distinct.rename({"ranks": "n_gpus"}).with_columns(
        pl.col("k_bytes_per_element", "v_bytes_per_element").cast(pl.Float64)
    )
    needed = cache_bytes_by_setting(layers, settings, CONV_BYTES).select(
        "model",
        "setting",
        needed_bytes=pl.col("kv_bytes") + pl.col("state_bytes"),
        start_read_bytes=2 * pl.col("state_bytes"),
        read_bytes=pl.col("kv_read_bytes"),
    )
    reserved = reserved_cache(layers, settings)
    numbered = wide.join(distinct, on=keys, nulls_equal=True)
    return numbered.join(needed.join(reserved, on=["model", "setting"]), on="setting")
