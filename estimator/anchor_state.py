"""What measured rows are worth: the depth they measured, and whether something spoils them.

A row is `unresolved` when one of its names stands for no known id, `flagged` when a rule below says that it
measured something else than its setting says, and `accepted` otherwise. Neither is a fault: such rows are
shown and counted. `trust` says separately whether a sound row should also teach the calibration. Each rule is
one expression.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from estimator.anchor_names import LLAMA_CPP_FAMILY, RESOLVED_KINDS

ESTIMATED_SIZE_ERROR = (
    0.1  # dynamic mixes are up to this much smaller than their label, vision parts stay out
)
PREFILL_RISE = 1.25  # prefill this much faster behind a filled cache than with an empty one was not computed


# --- the setting ---


def depth_tokens() -> pl.Expr:
    """Tokens in the cache halfway through the generation: start depth plus half of what was generated,
    rounded.

    Without a stated start depth the prompt is the start (a generation follows its prompt); without either it
    is null.
    """
    start = pl.coalesce("start_depth_tokens", "prompt_tokens")
    return (start + pl.col("generated_tokens").fill_null(0) / 2).round(0).cast(pl.Int32)


def depth_basis() -> pl.Expr:
    """Where the start depth is from: stated, prompt (its length stands for it) or unknown."""
    return (
        pl.when(pl.col("start_depth_tokens").is_not_null()).then(pl.lit("stated"))
        .when(pl.col("prompt_tokens").is_not_null()).then(pl.lit("prompt"))
        .otherwise(pl.lit("unknown"))
    )  # fmt: skip


def least_file_gib() -> pl.Expr:
    """Least size of the weights in GiB: as printed, else parameters x bits per weight less its error."""
    estimated = pl.col("total_params") * pl.col("body_bpw") / 8 / 2**30
    return pl.coalesce("model_size_gib", estimated * (1 - ESTIMATED_SIZE_ERROR))


# --- what spoils a single-request row: each rule is true where it applies ---


def declared_speculation() -> pl.Expr:
    """The source says that a draft model or multi-token prediction was on."""
    text = pl.col("speculation").str.to_lowercase()
    return (text.is_not_null() & ~text.str.contains("flag=off|not used")).fill_null(False)


def labelled_speculation() -> pl.Expr:
    """Speculation only in a label: `-mtp` and Ollama's `-mlx` tags, or a draft model in a cache label.

    llama-bench runs of an MTP file do not use its MTP head, so file names (`.gguf`, `-GGUF`) do not count.
    """
    name = pl.col("model_name").str.to_lowercase()
    ollama_tag = (pl.col("framework") == "ollama") & name.str.contains(r"[:-][a-z0-9.-]*(mlx|mtp)")
    is_tag = name.str.contains(r"(^|[-:_ ])mtp($|[-:_ ])") & ~name.str.contains("gguf")
    mtp_tag = is_tag & ~pl.col("framework").is_in(["llama.cpp", "ik_llama.cpp"])
    return (ollama_tag | mtp_tag).fill_null(False) | (pl.col("kv_trait") == "speculation").fill_null(False)


def exotic_kv() -> pl.Expr:
    """A cache type that the published engines do not have."""
    return (pl.col("kv_trait") == "exotic").fill_null(False)


def asymmetric_kv() -> pl.Expr:
    """Keys and values stored in different types; the cube has one type for both."""
    return pl.col("value_kv_dtype").is_not_null()


def partial_offload() -> pl.Expr:
    """The source's offload text keeps tensors or layers on the CPU of a machine with a GPU.

    Metal builds of 2023 print ngl=1 for everything on the GPU.
    """
    text = pl.col("offload").str.to_lowercase()
    layers = text.str.extract(r"^ngl=(\d+)$").cast(pl.Int32)
    too_few = (layers < pl.col("n_layers")) & (pl.col("backend") != "metal")
    mixed = text.str.contains("-ot|cpu") | (pl.col("backend_name") == "cuda+cpu")
    on_cpu = too_few.fill_null(False) | mixed.fill_null(False)
    return (on_cpu & (pl.col("backend") != "cpu")).fill_null(False)


def larger_than_memory() -> pl.Expr:
    """More weights than all GPUs hold: part was on the CPU, whatever the row says (CPUs aside)."""
    too_large = least_file_gib() > pl.col("memory_gib") * pl.col("n_gpus")
    return (too_large & (pl.col("backend") != "cpu")).fill_null(False)


def over_network() -> pl.Expr:
    """Several hosts over RPC or a network of small machines."""
    host = pl.concat_str("gpu_name", "host_note", separator=" ", ignore_nulls=True)
    return host.str.contains("(?i)rpc over|cluster")


def several_requests() -> pl.Expr:
    """More than one request at a time."""
    return (pl.col("n_requests") != 1).fill_null(False)


def split_by_rows() -> pl.Expr:
    """XiongjieDai's LLaMA 1 and 2 runs on several GPUs: builds of 2023 split tensors by rows, not layers."""
    old = pl.col("locator").str.contains(r"^LLaMA(?: 2)?/")
    return ((pl.col("publisher") == "xiongjiedai") & old & (pl.col("n_gpus") > 1)).fill_null(False)


def impossible_rate() -> pl.Expr:
    """The source was marked as faster than its memory bandwidth when it was gathered."""
    return pl.col("physics_flag").is_not_null()


def unknown_count() -> pl.Expr:
    """The source does not say how many GPUs worked together."""
    return pl.col("n_gpus").is_null()


DECODE_RULES: Mapping[str, pl.Expr] = {
    "speculation": declared_speculation(),
    "speculation-in-label": labelled_speculation(),
    "exotic-kv": exotic_kv(),
    "asymmetric-kv": asymmetric_kv(),
    "partial-offload": partial_offload(),
    "larger-than-memory": larger_than_memory(),
    "over-network": over_network(),
    "several-requests": several_requests(),
    "split-by-rows": split_by_rows(),
    "impossible-rate": impossible_rate(),
    "gpu-count-unknown": unknown_count(),
}


# --- what spoils a serving row ---


def any_speculation() -> pl.Expr:
    """The source names a draft model, multi-token prediction or an accept length."""
    return pl.col("speculation").is_not_null()


def several_nodes() -> pl.Expr:
    """More than one machine: the network between them is not modelled."""
    return (pl.col("n_nodes") > 1).fill_null(False)


def disaggregated() -> pl.Expr:
    """Prefill and decode on different workers: another system than the one estimated."""
    return pl.col("rate_kind") == "disaggregated"


def nothing_measured() -> pl.Expr:
    """Neither a throughput nor a latency."""
    return pl.all_horizontal(
        pl.col("output_tok_s", "output_tok_s_per_request", "total_tok_s", "ttft_mean_ms", "ttft_median_ms",
               "ttft_p99_ms", "tpot_mean_ms", "tpot_median_ms", "tpot_p99_ms").is_null()
    )  # fmt: skip


def label_is_float32() -> pl.Expr:
    """`float32` labels whose speeds are those of 16-bit weights."""
    return (pl.col("quant") == "native/f32").fill_null(False)


def fitted_rate() -> pl.Expr:
    """Computed from a fit, not measured."""
    return pl.col("rate_kind") == "fitted"


SERVING_RULES: Mapping[str, pl.Expr] = {
    "speculation": any_speculation(),
    "several-nodes": several_nodes(),
    "disaggregated": disaggregated(),
    "nothing-measured": nothing_measured(),
    "float32-label": label_is_float32(),
    "fitted": fitted_rate(),
    "larger-than-memory": larger_than_memory(),
    "gpu-count-unknown": unknown_count(),
}


# --- prefill and trust ---


def prefill_rises_with_depth() -> pl.Expr:
    """The same prompt processed faster behind a filled cache than at the smallest depth: a prefix cache
    answered.

    llama-sweep-bench has no such cache; there the first chunk is merely cold.
    """
    series = ["publisher", "prompt_tokens", "gpu_name", "n_gpus", "framework_name", "framework_version",
              "backend_name", "model_name", "quant_name", "kv_cache_name", "host_note",
              "flash_attention"]  # fmt: skip
    depth = pl.when(pl.col("prefill_tok_s").is_not_null()).then(pl.col("start_depth_tokens"))
    smallest = depth.min().over(series)
    shallow = pl.col("prefill_tok_s").filter(depth == depth.min()).max().over(series)
    rises = (depth > smallest) & (pl.col("prefill_tok_s") > PREFILL_RISE * shallow)
    return (rises & ~pl.col("note").str.contains("sweep-bench").fill_null(False)).fill_null(False)


def prefix_cache_run() -> pl.Expr:
    """A run made to measure a prefix cache: its prompt speed is that of the cache."""
    return pl.col("note").str.contains("objective=prefix_cache").fill_null(False)


def whole_request_rate() -> pl.Expr:
    """Tokens per second over the whole request, prompt included."""
    return pl.col("rate_kind") == "wall"


def backend_not_stated() -> pl.Expr:
    """llama.cpp on AMD or Intel without a word on ROCm, SYCL or Vulkan."""
    return (
        (pl.col("backend_basis") == "native")
        & pl.col("framework").is_in(LLAMA_CPP_FAMILY)
        & pl.col("backend").is_in(["rocm", "sycl"])
    ).fill_null(False)


PREFILL_RULES: Mapping[str, pl.Expr] = {
    "prefill-rises-with-depth": prefill_rises_with_depth(),
    "prefix-cache-run": prefix_cache_run(),
}
DECODE_TRUST_RULES: Mapping[str, pl.Expr] = {
    "whole-request-rate": whole_request_rate(),
    "backend-not-stated": backend_not_stated(),
}
SERVING_TRUST_RULES: Mapping[str, pl.Expr] = {}


# --- states ---


def decode_state(
    anchors: pl.DataFrame,
    flags: pl.DataFrame,
    publishers: pl.DataFrame,
    gpus: pl.DataFrame,
    models: pl.DataFrame,
    quants: pl.DataFrame,
) -> pl.DataFrame:
    """Adds depth_tokens, depth_basis, state, state_reason, prefill_state, prefill_reason, trust and
    trust_reason to resolved rows.

    `flags`: anchor_id, flag, effect (state, prefill, trust). `publishers`: set, publisher, scope, reason. The
    other tables give memory_gib, n_layers, total_params and body_bpw. `prefill_state` is null without a
    prefill.
    """
    result = _with_facts(
        anchors.with_columns(depth_tokens().alias("depth_tokens"), depth_basis().alias("depth_basis")),
        gpus,
        models,
        quants,
    )
    result = _with_state(result, flags, DECODE_RULES)
    result = _with_trust(result, flags, publishers, "decode", DECODE_TRUST_RULES)
    spoilt = _joined(
        pl.when(pl.col("state") == "flagged").then(pl.col("state_reason")),
        *[pl.when(rule).then(pl.lit(name)) for name, rule in PREFILL_RULES.items()],
        pl.col("_flags_prefill"),
        pl.col("_publisher_prefill"),
    )
    distrusted = publishers.filter((pl.col("set") == "decode") & (pl.col("scope") == "prefill")).select(
        "publisher", pl.col("reason").alias("_publisher_prefill")
    )
    state = (
        pl.when(pl.col("state") == "unresolved").then(pl.lit("unresolved"))
        .when(pl.col("prefill_reason").is_not_null()).then(pl.lit("flagged")).otherwise(pl.lit("accepted"))
    )  # fmt: skip
    return (
        _with_flags(result, flags, "prefill")
        .join(distrusted, on="publisher", how="left", maintain_order="left")
        .with_columns(pl.when(pl.col("prefill_tok_s").is_not_null()).then(spoilt).alias("prefill_reason"))
        .with_columns(pl.when(pl.col("prefill_tok_s").is_not_null()).then(state).alias("prefill_state"))
        .drop("_flags_prefill", "_publisher_prefill", "memory_gib", "n_layers", "total_params", "body_bpw")
    )


def serving_state(
    anchors: pl.DataFrame,
    flags: pl.DataFrame,
    publishers: pl.DataFrame,
    gpus: pl.DataFrame,
    models: pl.DataFrame,
    quants: pl.DataFrame,
) -> pl.DataFrame:
    """Adds state, state_reason, trust and trust_reason to resolved serving rows (see `decode_state`)."""
    sized = anchors.with_columns(pl.lit(None, dtype=pl.Float64).alias("model_size_gib"))
    result = _with_state(_with_facts(sized, gpus, models, quants), flags, SERVING_RULES)
    return _with_trust(result, flags, publishers, "serving", SERVING_TRUST_RULES).drop(
        "model_size_gib", "memory_gib", "n_layers", "total_params", "body_bpw"
    )


def _with_facts(
    anchors: pl.DataFrame, gpus: pl.DataFrame, models: pl.DataFrame, quants: pl.DataFrame
) -> pl.DataFrame:
    return (
        anchors.join(gpus.select("gpu", "memory_gib"), on="gpu", how="left", maintain_order="left")
        .join(
            models.select("model", "n_layers", "total_params"), on="model", how="left", maintain_order="left"
        )
        .join(quants.select("quant", "body_bpw"), on="quant", how="left", maintain_order="left")
    )


def _with_state(anchors: pl.DataFrame, flags: pl.DataFrame, rules: Mapping[str, pl.Expr]) -> pl.DataFrame:
    missing = pl.concat_str(
        [pl.when(pl.col(kind).is_null()).then(pl.lit(f"{kind};")) for kind in RESOLVED_KINDS],
        ignore_nulls=True,
    ).str.strip_suffix(";")
    found = _joined(
        *[pl.when(rule).then(pl.lit(name)) for name, rule in rules.items()], pl.col("_flags_state")
    )
    return (
        _with_flags(anchors, flags, "state")
        .with_columns(pl.when(missing != "").then(missing).alias("unresolved_kinds"),
                      found.alias("state_reason"))
        .with_columns(
            pl.when(pl.col("unresolved_kinds").is_not_null()).then(pl.lit("unresolved"))
            .when(pl.col("state_reason").is_not_null()).then(pl.lit("flagged"))
            .otherwise(pl.lit("accepted")).alias("state"),
        )
        .drop("_flags_state")
    )  # fmt: skip


def _with_trust(
    anchors: pl.DataFrame,
    flags: pl.DataFrame,
    publishers: pl.DataFrame,
    used_in: str,
    rules: Mapping[str, pl.Expr],
) -> pl.DataFrame:
    mine = publishers.filter(pl.col("set") == used_in)
    whole = mine.filter(pl.col("scope") == "all").select(
        "publisher", pl.col("reason").alias("_publisher_reason")
    )
    reason = _joined(
        pl.col("_publisher_reason"), pl.col("_flags_trust"),
        *[pl.when(rule).then(pl.lit(name)) for name, rule in rules.items()],
    )  # fmt: skip
    result = (
        _with_flags(anchors, flags, "trust")
        .join(whole, on="publisher", how="left", maintain_order="left")
        .with_columns(reason.alias("trust_reason"))
        .with_columns(
            pl.when(pl.col("trust_reason").is_null())
            .then(pl.lit("accepted"))
            .otherwise(pl.lit("flagged"))
            .alias("trust")
        )
        .drop("_publisher_reason", "_flags_trust")
    )
    return result


def _with_flags(anchors: pl.DataFrame, flags: pl.DataFrame, effect: str) -> pl.DataFrame:
    """Adds `_flags_<effect>`: the flags of the row with that effect, joined by `; `, or null."""
    mine = (
        flags.filter(pl.col("effect") == effect)
        .group_by("anchor_id")
        .agg(pl.col("flag").unique().sort().str.join("; ").alias(f"_flags_{effect}"))
    )
    return anchors.join(mine, on="anchor_id", how="left", maintain_order="left")


def _joined(*reasons: pl.Expr) -> pl.Expr:
    """The reasons that are there, joined by `; `; null when there is none."""
    text = pl.concat_str(reasons, separator="; ", ignore_nulls=True)
    return pl.when(text != "").then(text)
