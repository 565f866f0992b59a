"""Estimates for exactly the setting of every memory log, beside what the log says: cache, weights, compute.

One row per log and part. A log is judged only where it says what is needed: `reason` names what it does not
say, or why the two figures are not of the same thing. Nothing is fitted here.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.attention_state import cached_positions, layer_kv_bytes, with_engine_settings
from estimator.llama_cpp_compute import compute_shapes, device_compute_bytes, with_coefficients
from estimator.llama_cpp_context import window_cells, with_llama_cpp_layers
from estimator.weights import weights

PARTS: Final = ("kv", "weights", "compute", "total")
BYTES_PER_MIB: Final = 2**20
LLAMA_CPP_FAMILY: Final = ("llama.cpp", "ik_llama.cpp", "ollama")
DEFAULT_UBATCH_TOKENS: Final = 512
F16_BYTES: Final = 2.0
# llama.cpp before 2025-06 sized its output for a whole batch (physics of the planner: n_outputs = n_batch).
OUTPUT_TOKENS: Final = 2048
# Embeddings that stay on the host are less than this of the weights; more means that layers stay there too.
HOST_WEIGHTS_SHARE: Final = 0.25
# Old names of a type that a framework writes in its logs.
TYPE_NAMES: Final = {"bf16": "f16"}


def memory_residuals(
    logs: pl.LazyFrame,
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    llama_cpp_compute: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    stored_weights: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    latent_modes: pl.LazyFrame,
    flags: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `memory_residuals`: one row per log and part (kv, weights, compute, total), in MiB.

    `logs`: the table memory_logs; the others: the tables of those names. Out:
    observed_mib, estimated_mib, ratio (estimate / log), reason (null where the two may be compared).
    """
    settled = _settled(logs, models, frameworks, kv_dtypes, latent_modes)
    seen = with_coefficients(compute_shapes(with_llama_cpp_layers(llama_cpp_layers)), llama_cpp_compute)
    computed = [
        _kv(settled, layers, _with_used_windows(layers, llama_cpp_layers)),
        _weights(settled, models, stored_weights),
        _compute(settled, seen),
    ]
    parts = _flagged(pl.concat([part.select(_PART_COLUMNS) for part in computed]), flags)
    found = pl.concat([parts, _flagged(_total(settled, parts).select(_PART_COLUMNS), flags)])
    comparable = pl.col("reason").is_null()
    named = settled.select("log_id", "framework", "model", "quant", "citation", "locator")
    return (
        found.join(named, on="log_id")
        .with_columns(
            ratio=pl.when(comparable & (pl.col("observed_mib") > 0)).then(
                pl.col("estimated_mib") / pl.col("observed_mib")
            )
        )
        .sort("log_id", "part")
    )


def _flagged(parts: pl.LazyFrame, flags: pl.LazyFrame) -> pl.LazyFrame:
    """A flag of the sources is a reason, unless there is another."""
    known = flags.select("log_id", pl.col("part").cast(pl.String), flag="reason")
    return (
        parts.join(known, on=["log_id", "part"], how="left")
        .with_columns(reason=pl.coalesce("reason", "flag"))
        .drop("flag")
    )


_PART_COLUMNS: Final = ("log_id", "part", "observed_mib", "estimated_mib", "reason")


def _settled(
    logs: pl.LazyFrame,
    models: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    latent_modes: pl.LazyFrame,
) -> pl.LazyFrame:
    """The logs with what the formulas read: ranks, context, bytes per element, the latent's mode, offload."""
    text = logs.with_columns(pl.col("framework", "flash_attention").cast(pl.String))
    named = text.with_columns(
        _names=pl.col("kv_cache_name").fill_null("f16").str.split("/"),
        is_llama_cpp=pl.col("framework").is_in(LLAMA_CPP_FAMILY).fill_null(False),
        ranks=pl.col("tensor_parallel").fill_null(1).cast(pl.Int64),
        # A pool is stated in tokens; with decode context parallelism every rank holds its share of them.
        shards=pl.col("note").str.extract(r"DCP=(\d+)").cast(pl.Int64).fill_null(1),
    ).with_columns(
        k_type=_type_name(pl.col("_names").list.first()),
        v_type=_type_name(pl.col("_names").list.last()),
        judged_tokens=pl.coalesce(pl.col("kv_tokens") // pl.col("shards"), "context_tokens").cast(pl.Int64),
        is_pool=pl.col("kv_tokens").is_not_null(),
    )
    typed = _with_density(_with_density(named, kv_dtypes, "k"), kv_dtypes, "v")
    facts = frameworks.select(
        pl.col("framework").cast(pl.String),
        "engine",
        pl.col("parallel_mode").cast(pl.String),
        keeps_windows_whole=pl.col("cache_layout").cast(pl.String) == "whole",
    )
    sizes = models.select("model", model_layers="n_layers")
    return (
        _with_latent_mode(typed, latent_modes)
        .join(facts, on="framework", how="left")
        .join(sizes, on="model", how="left")
        .drop("_names")
        .with_columns(
            is_partial=(pl.col("layers_on_gpu") < pl.col("n_layers_counted")).fill_null(False)
            | _keeps_tensors_on_host(),
            other_model=(pl.col("n_layers_counted") - 1 != pl.col("model_layers")).fill_null(False),
        )
    )


def _type_name(name: pl.Expr) -> pl.Expr:
    lower = name.str.to_lowercase()
    return lower.replace(TYPE_NAMES)


def _keeps_tensors_on_host() -> pl.Expr:
    """More weights on the host than embeddings make up, as with experts on the CPU."""
    both = pl.col("weights_cpu_mib") + pl.col("weights_gpu_mib")
    return (pl.col("weights_cpu_mib") > HOST_WEIGHTS_SHARE * both).fill_null(False)


def _with_density(rows: pl.LazyFrame, kv_dtypes: pl.LazyFrame, side: str) -> pl.LazyFrame:
    """Bytes per element and per row of `side` (k or v) in the framework's own type, or the type another one
    has.
    """
    density = f"{side}_bytes_per_element"
    stated = kv_dtypes.select(
        "framework",
        pl.col("kv_dtype").alias(f"{side}_type"),
        _own=density,
        _own_row=pl.col("bytes_per_row").fill_null(0),
    ).drop_nulls("_own")
    other = stated.group_by(f"{side}_type").agg(
        _other=pl.col("_own").max(), _other_row=pl.col("_own_row").max()
    )
    return (
        rows.join(stated, on=["framework", f"{side}_type"], how="left")
        .join(other, on=f"{side}_type", how="left")
        .with_columns(
            pl.coalesce("_own", "_other").alias(density),
            pl.coalesce("_own_row", "_other_row").alias(f"{side}_row_bytes"),
        )
        .drop("_own", "_other", "_own_row", "_other_row")
    )


def _with_latent_mode(rows: pl.LazyFrame, latent_modes: pl.LazyFrame) -> pl.LazyFrame:
    """keys, values and rotary_elements of the log's mode; other engines keep the latent alone."""
    text = latent_modes.select(
        pl.col("framework").cast(pl.String),
        pl.col("mla_mode").alias("_mode"),
        pl.col("flash_attention").cast(pl.String),
        pl.col("keys", "values").cast(pl.String),
        "rotary_elements",
    )
    mode = rows.with_columns(_mode=pl.col("mla_mode").cast(pl.String).fill_null("unstated"))
    either = text.filter(pl.col("flash_attention") == "either").drop("flash_attention")
    by_state = text.filter(pl.col("flash_attention") != "either")
    keys = ["framework", "_mode"]
    joined = mode.join(either, on=keys, how="left").join(
        by_state, on=[*keys, "flash_attention"], how="left", suffix="_by_state"
    )
    return joined.with_columns(
        keys=pl.coalesce("keys_by_state", "keys", pl.lit("latent")),
        values=pl.coalesce("values_by_state", "values", pl.lit("none")),
        rotary_elements=pl.coalesce("rotary_elements_by_state", "rotary_elements").fill_null(0),
    ).drop("_mode", "keys_by_state", "values_by_state", "rotary_elements_by_state")


def _logged_positions() -> pl.Expr:
    """Positions a layer keeps by the log's engine: llama.cpp's window cells, the whole context where it keeps
    windows whole, the window else.
    """
    window, context = pl.col("window_tokens").cast(pl.Int64), pl.col("context_tokens")
    kept = pl.min_horizontal(window_cells(window), context)
    cells = pl.when(pl.col("is_llama_cpp")).then(kept).otherwise(cached_positions())
    return (
        pl.when(window.is_null() | pl.col("keeps_windows_whole").fill_null(False))
        .then(context)
        .otherwise(cells)
    )


def _logged_layer_bytes() -> pl.Expr:
    """KV bytes of one layer: as estimated, or of latent attention as the mode of the log keeps it.

    ik_llama.cpp, pull requests 235 and 473: keys and values of every head (mode 0), the latent and its
    transpose (mode 1 without flash attention), the latent alone.
    """
    positions = _logged_positions()
    heads = pl.col("n_heads").cast(pl.Int64)
    key_width = pl.when(pl.col("keys") == "heads").then(heads * pl.col("k_head_dim")).otherwise("latent_dim")
    value_width = (
        pl.when(pl.col("values") == "heads")
        .then(heads * pl.col("v_head_dim"))
        .when(pl.col("values") == "latent")
        .then(pl.col("latent_dim") - pl.col("rotary_elements"))
        .otherwise(0)
    )
    value_row = pl.when(value_width > 0).then("v_row_bytes").otherwise(0)
    latent = positions * (
        key_width * pl.col("k_bytes_per_element")
        + value_width * pl.col("v_bytes_per_element")
        + pl.col("k_row_bytes")
        + value_row
    )
    has_cache = layer_kv_bytes(positions) > 0
    rows = positions * (pl.col("k_row_bytes") + pl.col("v_row_bytes"))
    plain = layer_kv_bytes(positions) + pl.when(has_cache).then(rows).otherwise(0)
    return pl.when(pl.col("mixer") == "mla").then(latent).otherwise(plain)


def _with_used_windows(layers: pl.LazyFrame, llama_cpp_layers: pl.LazyFrame) -> pl.LazyFrame:
    """The layers with the windows that llama.cpp uses; it keeps the whole context of some architectures."""
    used = llama_cpp_layers.select("model", "group", "uses_window")
    window = pl.when("uses_window").then("window_tokens")
    return layers.join(used, on=["model", "group"]).with_columns(window_tokens=window).drop("uses_window")


def _kv(settled: pl.LazyFrame, layers: pl.LazyFrame, llama_cpp_layers: pl.LazyFrame) -> pl.LazyFrame:
    settings = settled.select(
        "log_id", "model", "is_llama_cpp", "keeps_windows_whole", "keys", "values", "rotary_elements",
        "k_bytes_per_element", "v_bytes_per_element", "k_row_bytes", "v_row_bytes", "is_pool",
        context_tokens="judged_tokens",
        n_gpus="ranks",
        slots=pl.col("n_slots").fill_null(1).cast(pl.Int64),
        ubatch_tokens=pl.col("ubatch_tokens").fill_null(DEFAULT_UBATCH_TOKENS).cast(pl.Int64),
        kv_unified=pl.lit(True),
        swa_full=pl.lit(False),
    )  # fmt: skip
    used = pl.concat(
        [
            settings.filter(is_llama_cpp).join(side, on="model")
            for is_llama_cpp, side in (
                (pl.col("is_llama_cpp"), llama_cpp_layers),
                (~pl.col("is_llama_cpp"), layers),
            )
        ]
    )
    count = pl.col("n_layers").cast(pl.Int64)
    estimated = (
        with_engine_settings(used)
        .with_columns(kv=_logged_layer_bytes())
        .group_by("log_id")
        .agg(
            estimated_mib=(pl.col("kv") * count).sum() / BYTES_PER_MIB,
            has_window=pl.col("window_tokens").is_not_null().any(),
            has_state=(pl.col("f32_state_elements") > 0).any(),
        )
    )
    observed = pl.col("kv_gpu_mib").fill_null(0) + pl.col("kv_cpu_mib").fill_null(0)
    uneven_pool = pl.col("is_pool") & (pl.col("has_window") | pl.col("has_state"))
    return settled.join(estimated, on="log_id", how="left").with_columns(
        part=pl.lit("kv"),
        observed_mib=pl.when(pl.col("kv_gpu_mib").is_not_null() | pl.col("kv_cpu_mib").is_not_null()).then(
            observed
        ),
        reason=_first_reason(
            *_NOT_THE_MODEL,
            (pl.col("kv_gpu_mib").is_null() & pl.col("kv_cpu_mib").is_null(), "the log states no cache"),
            (pl.col("judged_tokens").is_null(), "the log states no tokens"),
            (pl.col("k_bytes_per_element").is_null(), "unknown cache type"),
            (pl.col("estimated_mib").is_null(), "the model's layers are not known"),
            (uneven_pool, "a pool of windows or state has no bytes per token"),
            (
                ~pl.col("is_llama_cpp") & ~pl.col("is_pool"),
                "the pool is what is left of the memory, whatever the context",
            ),
        ),
    )


_NOT_THE_MODEL: Final = (
    (pl.col("model").is_null(), "unknown model"),
    (pl.col("other_model"), "the log counts layers of another model"),
)
_NOT_ON_ONE_GPU: Final = ((pl.col("is_partial"), "partial offload"),)


def _weights(settled: pl.LazyFrame, models: pl.LazyFrame, stored_weights: pl.LazyFrame) -> pl.LazyFrame:
    """Weights by the estimator's `weights`, for the distinct formats of the logs."""
    wanted = settled.select("model", "framework", "engine", "parallel_mode", "quant").drop_nulls().unique()
    formats = wanted.drop("model").unique().with_columns(quant_citation=pl.lit(""), mix_citation=pl.lit(""))
    counts = settled.select(n_gpus="ranks").unique()
    named = models.join(wanted.select("model").unique(), on="model").select(
        "model", "n_layers", "vocab_size", "n_experts", "n_experts_used", model_citation="citation"
    )
    unsplit = {"model": pl.String, "quant": pl.String, "n_gpus": pl.Int64, "fullest_bytes": pl.Int64}
    estimated = weights(stored_weights, named, formats, pl.LazyFrame(schema=unsplit), counts).select(
        "model",
        "framework",
        "quant",
        ranks=pl.col("n_gpus").cast(pl.Int64),
        estimated_mib=pl.when(pl.col("n_gpus") == 1).then("device_bytes").otherwise("weights_bytes")
        / BYTES_PER_MIB,
    )
    return settled.join(estimated, on=["model", "framework", "quant", "ranks"], how="left").with_columns(
        part=pl.lit("weights"),
        observed_mib="weights_gpu_mib",
        reason=_first_reason(
            *_NOT_THE_MODEL,
            (pl.col("weights_gpu_mib").is_null(), "the log states no weights"),
            *_NOT_ON_ONE_GPU,
            (pl.col("quant").is_null(), "unknown weight format"),
            (pl.col("estimated_mib").is_null(), "no density for the weight format"),
        ),
    )


def _compute(settled: pl.LazyFrame, shapes: pl.LazyFrame) -> pl.LazyFrame:
    """llama.cpp's compute buffer on one GPU for the log's micro-batch. `shapes`: see
    `llama_cpp_compute.with_coefficients`.
    """
    ubatch = pl.col("ubatch_tokens").fill_null(DEFAULT_UBATCH_TOKENS).cast(pl.Int64)
    joined = settled.join(shapes, on="model", how="left").with_columns(
        logged_gpus=pl.col("n_gpus").fill_null(1),
        n_gpus=pl.lit(1, pl.Int64),
        ubatch_tokens=ubatch,
        outputs=pl.min_horizontal(ubatch, pl.lit(OUTPUT_TOKENS, pl.Int64)),
        context_tokens=pl.col("judged_tokens").cast(pl.Int64),
        slots=pl.col("n_slots").fill_null(1).cast(pl.Int64),
        flash_attention=(pl.col("flash_attention") == "on").fill_null(False),
        kv_unified=pl.lit(True),
        swa_full=pl.lit(False),
        k_bytes_per_element=pl.col("k_bytes_per_element").fill_null(F16_BYTES),
    )
    return joined.with_columns(
        part=pl.lit("compute"),
        observed_mib="compute_gpu_mib",
        estimated_mib=device_compute_bytes(pl.lit(0, pl.Int64)) / BYTES_PER_MIB,
        reason=_first_reason(
            *_NOT_THE_MODEL,
            (pl.col("compute_gpu_mib").is_null(), "the log states no compute buffer"),
            (~pl.col("is_llama_cpp"), "the log's engine states no compute buffer"),
            *_NOT_ON_ONE_GPU,
            (pl.col("logged_gpus") > 1, "several GPUs share the graph"),
            (pl.col("judged_tokens").is_null(), "the log states no tokens"),
            (pl.col("hidden_size").is_null(), "the model's layers are not known"),
            (
                (pl.col("framework") == "ik_llama.cpp") & pl.col("mla_mode").fill_null(0).gt(0),
                "the graph of ik_llama.cpp's latent modes is another",
            ),
        ),
    )


def _total(settled: pl.LazyFrame, parts: pl.LazyFrame) -> pl.LazyFrame:
    """The sum of the parts, where all of them may be compared."""
    sums = parts.group_by("log_id").agg(
        estimated_mib=pl.col("estimated_mib").sum(),
        blocked=pl.col("reason").sort_by("part").drop_nulls().first(),
    )
    return settled.join(sums, on="log_id", how="left").with_columns(
        part=pl.lit("total"),
        observed_mib="total_gpu_mib",
        reason=_first_reason(
            (pl.col("total_gpu_mib").is_null(), "the log states no total"),
            (~pl.col("is_llama_cpp"), "the engine fills the memory it is given"),
        ).pipe(lambda own: pl.coalesce(own, "blocked")),
    )


def _first_reason(*cases: tuple[pl.Expr, str]) -> pl.Expr:
    return pl.coalesce(pl.when(holds).then(pl.lit(reason)) for holds, reason in cases)
