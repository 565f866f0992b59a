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
from estimator.parallel import fullest_stage_fraction, tensor_ranks

LLAMA_CPP_CONV_BYTES = 4
# Architectures whose windows llama.cpp does not use: it keeps the whole context (planner of 0c1e57098, all
# settings).
LLAMA_CPP_WITHOUT_WINDOWS = ("mistral", "phi3", "starcoder2")


def window_cells(window_tokens: pl.Expr, context_tokens: pl.Expr) -> pl.Expr:
    """Positions an engine keeps of a sliding window or chunk: the windows of its slots and the tokens in
    flight, in whole steps.

    Reads slots, window_slack_tokens and window_step_tokens of the engine. llama.cpp with a unified cache:
    pad(min(C, W x slots + ubatch), 256) (llama-kv-cache-iswa.cpp at 0c1e57098). vLLM:
    ceil((W - 1 + in flight) / block) + 1 blocks (v1/kv_cache_interface.py of 0.33.0). Null windows stay null.
    """
    step = pl.col("window_step_tokens")
    cells = (window_tokens * pl.col("slots") + pl.col("window_slack_tokens") + step - 1) // step * step
    return pl.when(window_tokens.is_not_null()).then(pl.min_horizontal(cells, context_tokens))


def engine_windows(frameworks: pl.LazyFrame, steps: pl.LazyFrame) -> pl.LazyFrame:
    """Per framework, how it keeps windows and state: slots, window_slack_tokens, window_step_tokens,
    is_llama_cpp.

    `frameworks` and `steps`: the tables frameworks and framework_steps. An engine that states neither a block
    nor a context step keeps exactly the window; one that states no slots has one.
    """
    in_flight = steps.filter((pl.col("setting") == "prefill_tokens") & (pl.col("at_least") == 0)).select(
        "framework", in_flight_tokens=pl.col("value").cast(pl.Int64)
    )
    block = pl.col("profile_kv_block_tokens").cast(pl.Int64)
    is_llama_cpp = (pl.col("activation_rule").cast(pl.String) == "llama_cpp_compute_buffer").fill_null(False)
    micro_batch = pl.when(is_llama_cpp).then(pl.col("profile_ubatch_tokens").cast(pl.Int64))
    paged = pl.when(pl.col("in_flight_tokens").is_not_null()).then(pl.col("in_flight_tokens") + block - 1)
    return frameworks.join(in_flight, on="framework", how="left").select(
        "framework",
        is_llama_cpp=is_llama_cpp,
        slots=pl.col("profile_slots").cast(pl.Int64).fill_null(1),
        window_slack_tokens=pl.coalesce(paged, micro_batch, pl.lit(0, pl.Int64)),
        window_step_tokens=pl.coalesce(
            block, pl.col("profile_context_step_tokens").cast(pl.Int64), pl.lit(1, pl.Int64)
        ),
    )


def kv_cache(
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    storages: pl.LazyFrame,
    contexts: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `kv_cache`: model x framework x kv_dtype x context_tokens x n_gpus -> bytes.

    `models`: model, model_type, n_layers, model_citation; `layers`: the table; `storages`: framework,
    parallel_mode, kv_dtype, k_bytes_per_element, v_bytes_per_element, kv_dtype_citation and the columns of
    `engine_windows`. Out: needed_bytes and reserved_bytes on the fullest GPU, read_bytes and start_read_bytes
    (what one token reads on all GPUs together, replicated heads and latents on each of them: with the cache
    full, and with it empty, which is recurrent state only).
    """
    settings = _settings(storages, contexts, n_gpus)
    # Distinct settings are computed once; what each rank reads is summed over the ranks after the join.
    rows = pl.concat(
        [
            _cache_rows(
                layers,
                llama_cpp_layers(layers, models),
                settings.filter(pl.col("is_llama_cpp")),
                LLAMA_CPP_CONV_BYTES,
            ),
            _cache_rows(layers, layers, settings.filter(~pl.col("is_llama_cpp")), CONV_BYTES),
        ]
    )
    keys = ["context_tokens", "k_bytes_per_element", "v_bytes_per_element", "is_llama_cpp", "slots",
            "window_slack_tokens", "window_step_tokens"]  # fmt: skip
    wide = (
        storages.join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .filter((pl.col("n_gpus") == 1) | (pl.col("parallel_mode") != "none"))
        .with_columns(pl.col("context_tokens").cast(pl.Int64), ranks=tensor_ranks().cast(pl.Int64))
    )
    joined = wide.join(rows, left_on=[*keys, "ranks"], right_on=[*keys, "n_gpus"]).join(models, on="model")
    stage = fullest_stage_fraction()
    return joined.select(
        "model",
        "framework",
        "kv_dtype",
        pl.col("context_tokens").cast(pl.Int32),
        pl.col("n_gpus").cast(pl.Int16),
        needed_bytes=(pl.col("needed_bytes") * stage).ceil().cast(pl.Int64),
        reserved_bytes=(pl.col("reserved_bytes") * stage).ceil().cast(pl.Int64),
        read_bytes=pl.col("read_bytes") * pl.col("ranks"),
        start_read_bytes=pl.col("start_read_bytes") * pl.col("ranks"),
        model_citation="model_citation",
        kv_dtype_citation="kv_dtype_citation",
    ).sort("model", "framework", "kv_dtype", "context_tokens", "n_gpus")


def _settings(storages: pl.LazyFrame, contexts: pl.LazyFrame, n_gpus: pl.LazyFrame) -> pl.LazyFrame:
    """Distinct settings that change bytes: many frameworks share one, so each is computed once."""
    return (
        storages.join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .select(
            pl.col("context_tokens").cast(pl.Int64),
            pl.col("k_bytes_per_element").cast(pl.Float64),
            pl.col("v_bytes_per_element").cast(pl.Float64),
            tensor_ranks().cast(pl.Int64).alias("n_gpus"),
            "is_llama_cpp",
            "slots",
            "window_slack_tokens",
            "window_step_tokens",
        )
        .unique(maintain_order=True)
    )


def llama_cpp_layers(layers: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """The layers as llama.cpp caches them: no window for architectures whose window it does not use."""
    unused = pl.col("model_type").is_in(LLAMA_CPP_WITHOUT_WINDOWS).fill_null(False)
    window = pl.when(unused).then(None).otherwise("window_tokens")
    return (
        layers.join(models.select("model", "model_type"), on="model")
        .with_columns(window_tokens=window)
        .drop("model_type")
    )


def _cache_rows(
    layers: pl.LazyFrame, engine_layers: pl.LazyFrame, settings: pl.LazyFrame, conv_bytes: int
) -> pl.LazyFrame:
    """Bytes per rank: needed and read (by the model's `layers`), reserved (by the layers as the engine caches
    them).
    """
    keys = ["model", *settings.collect_schema()]
    needed = cache_bytes_by_setting(layers, settings, conv_bytes).select(
        *keys,
        needed_bytes=pl.col("kv_bytes") + pl.col("state_bytes"),
        start_read_bytes=2 * pl.col("state_bytes"),
        read_bytes=pl.col("kv_read_bytes"),
    )
    widened = engine_layers.join(settings, how="cross").with_columns(
        window_tokens=window_cells(pl.col("window_tokens").cast(pl.Int64), pl.col("context_tokens"))
    )
    reserved = _reserved(widened, keys, conv_bytes)
    return needed.join(reserved, on=keys)


def _reserved(widened: pl.LazyFrame, keys: list[str], conv_bytes: int) -> pl.LazyFrame:
    per_layer = layer_kv_bytes(cached_positions()) + layer_state_bytes(conv_bytes) * pl.col("slots")
    return widened.group_by(keys, maintain_order=True).agg(
        reserved_bytes=(per_layer * pl.col("n_layers").cast(pl.Int64)).sum()
    )
