"""The tables `verdict_audit` and `verdict_accuracy`: our verdict beside what happened, for every setting that
somebody ran.

A benchmark proves that its setting ran; whether all of it was on the GPU only where its source says so. So a
wrong verdict gets the first reason that explains it, and what no reason explains is a miss of the estimate.
"""

from __future__ import annotations

import polars as pl

from estimator.anchor_names import LLAMA_CPP_FAMILY, native_backend
from estimator.anchor_state import over_network, partial_offload
from estimator.capacity import claimed_gib, engine_usable_gib, gib, total_gib, verdict

SETTING = ("framework", "backend", "quant", "kv_dtype")
CONTEXT_STEP_TOKENS = 256  # contexts are judged in steps that are whole for every engine
COMMON = (
    "evidence", "anchor_id", "gpu", "n_gpus", "model", "framework", "backend", "quant", "kv_dtype",
    "context_tokens", "outcome", "state", "printed_weights_gib", "is_cache_stated", "is_same_model",
    "is_offload_stated", "is_over_network", "explanation", "citation", "locator",
)  # fmt: skip
# A total this much above what is usable may be an error of the estimate or of the reading of the memory.
NEAR_SHARE = 0.05


def decode_settings(anchors: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """Single-request benchmarks with resolved names on GPUs alone (`COMMON`): rows that say that they kept
    layers on the CPU are left out. The context is what was in the cache at the end.
    """
    tokens = pl.sum_horizontal("start_depth_tokens", "prompt_tokens", "generated_tokens")
    return (
        _resolved(anchors, "decode")
        .join(models.select("model", "n_layers"), on="model")
        .with_columns(pl.col("backend", "kv_trait").cast(pl.String))
        .filter(~partial_offload())
        .with_columns(
            context_tokens=tokens,
            printed_weights_gib="model_size_gib",
            is_offload_stated=pl.col("offload").is_not_null(),
            is_over_network=over_network().fill_null(False),
        )
        .select(COMMON)
    )


def serving_settings(anchors: pl.LazyFrame) -> pl.LazyFrame:
    """Serving benchmarks with resolved names (`COMMON`). Only that one request fitted is proven: others may
    have waited.
    """
    return (
        _resolved(anchors, "serving")
        .with_columns(
            context_tokens=pl.sum_horizontal("input_tokens", "output_tokens"),
            printed_weights_gib=pl.lit(None, dtype=pl.Float64),
            is_offload_stated=~pl.col("framework").is_in(LLAMA_CPP_FAMILY),
            is_over_network=pl.col("n_nodes").fill_null(1) > 1,
        )
        .select(COMMON)
    )


def report_settings(
    reports: pl.LazyFrame, gpus: pl.LazyFrame, models: pl.LazyFrame, frameworks: pl.LazyFrame
) -> pl.LazyFrame:
    """Reports of running out of memory, and of running (`COMMON`), on the maker's own stack.

    A report without a context is judged at the model's native one where the engine needs cache for that to
    start (profile_needs_full_context), else at the shortest. Source of the rule: vLLM 0.33.0
    v1/core/kv_cache_utils.py, _check_enough_kv_cache_memory.
    """
    whole = pl.when(pl.col("profile_needs_full_context").fill_null(False)).then("native_context_tokens")
    return (
        reports.join(models.select("model", "native_context_tokens"), on="model", how="left")
        .join(frameworks.select("framework", "profile_needs_full_context"), on="framework", how="left")
        .with_columns(context_tokens=pl.coalesce(pl.col("context_tokens").cast(pl.Int64), whole))
        .join(
            gpus.select(
                "gpu", _vendor=pl.col("vendor").cast(pl.String), _category=pl.col("category").cast(pl.String)
            ),
            on="gpu",
        )
        .with_columns(
            evidence=pl.lit("report"),
            anchor_id="report",
            backend=native_backend(),
            kv_dtype=pl.lit("f16"),
            outcome=pl.col("outcome").cast(pl.String),
            state=pl.lit("accepted"),
            printed_weights_gib=pl.lit(None, dtype=pl.Float64),
            is_cache_stated=pl.lit(True),
            is_same_model=pl.lit(True),
            is_offload_stated=pl.lit(True),
            is_over_network=pl.lit(False),
        )
        .select(COMMON)
    )  # fmt: skip


def _resolved(anchors: pl.LazyFrame, evidence: str) -> pl.LazyFrame:
    return anchors.filter(
        pl.all_horizontal(pl.col("gpu", "model", "quant", "framework", "backend", "kv_dtype").is_not_null()),
        pl.col("n_gpus") >= 1,
        pl.col("backend").cast(pl.String) != "cpu",
    ).with_columns(
        pl.col("backend").cast(pl.String),
        evidence=pl.lit(evidence),
        outcome=pl.lit("ran"),
        state=pl.col("state").cast(pl.String),
        is_cache_stated=pl.col("kv_basis").cast(pl.String) == "stated",
        is_same_model=pl.col("model_relation").cast(pl.String).fill_null("same") == "same",
        explanation=pl.lit(None, dtype=pl.String),
    )


def in_steps(settings: pl.LazyFrame) -> pl.LazyFrame:
    """Contexts rounded up to whole steps; unknown ones are one step."""
    step = pl.lit(CONTEXT_STEP_TOKENS, dtype=pl.Int64)
    tokens = pl.col("context_tokens").fill_null(0).cast(pl.Int64).clip(lower_bound=1)
    return settings.with_columns(context_tokens=((tokens + step - 1) // step * step).cast(pl.Int32))


def verdict_audit(
    settings: pl.LazyFrame,
    weights: pl.LazyFrame,
    kv_cache: pl.LazyFrame,
    runtime: pl.LazyFrame,
    formats: pl.LazyFrame,
    gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `verdict_audit`: a verdict for each of the settings that can be computed.

    `settings`: `COMMON`, `in_steps`, at_least_gib (the engine's step that the gpu reaches); the next three
    have the columns of the tables of those names, at the settings, the last two at every step
    (`gpu_steps.at_every_size`); `formats`: framework, memory_utilization,
    share_of_free; `gpus`: gpu, memory_gib, usable_gib, unified_memory.
    """
    usable = engine_usable_gib(pl.col("usable_gib"), pl.col("memory_gib"))
    memory = gpus.filter(pl.col("usable_gib").is_not_null())
    at = ("n_gpus", "context_tokens", "at_least_gib")
    shared = pl.col("unified_memory").fill_null(False)
    judged = (
        settings.join(weights.select("model", "framework", "quant", "n_gpus", "weights_bytes"),
                      on=["model", "framework", "quant", "n_gpus"])
        .join(kv_cache.select("model", "framework", "kv_dtype", *at, "reserved_bytes"),
              on=["model", "framework", "kv_dtype", *at])
        .join(runtime.select("model", "framework", "backend", *at, "runtime_bytes"),
              on=["model", "framework", "backend", *at])
        .join(formats, on="framework")
        .join(memory, on="gpu")
        .with_columns(weights_gib=gib("weights_bytes"), kv_cache_gib=gib("reserved_bytes"),
                      runtime_gib=gib("runtime_bytes"))
        .with_columns(total_gib=total_gib(), device_gib="usable_gib", usable_gib=usable, is_shared=shared)
        .with_columns(verdict=verdict(claimed_gib(), pl.col("usable_gib")))
    )  # fmt: skip
    says_it_fits = pl.col("verdict") != "no_fit"
    return judged.with_columns(agrees=says_it_fits == (pl.col("outcome") == "ran")).select(
        "evidence", "anchor_id", "gpu", "n_gpus", "model", "framework", "backend", "quant", "kv_dtype",
        "context_tokens", "weights_gib", "kv_cache_gib", "runtime_gib", "total_gib", "usable_gib", "verdict",
        "outcome", "agrees", "state", pl.when(~pl.col("agrees")).then(_reason()).alias("reason"),
        pl.when(~pl.col("agrees")).then("explanation").alias("explanation"), "citation", "locator",
    ).sort("evidence", "anchor_id")  # fmt: skip


def _reason() -> pl.Expr:
    """Why a verdict and what happened may differ, the strongest reason first; `unexplained` without one."""
    total, usable, device = pl.col("total_gib"), pl.col("usable_gib"), pl.col("device_gib")
    printed = pl.col("printed_weights_gib") / pl.col("n_gpus")
    all_memory = pl.col("memory_gib") * pl.col("n_gpus")
    with_small_cache = total - pl.col("kv_cache_gib") / 2
    reasons = {
        "reported-cause": (pl.col("outcome") != "ran") & pl.col("explanation").is_not_null(),
        "over-network": pl.col("is_over_network"),
        "file-larger-than-memory": pl.col("printed_weights_gib") > all_memory,
        "weights-larger-than-memory": pl.col("weights_gib") > pl.col("memory_gib"),
        "smaller-file-printed": total - pl.col("weights_gib") + printed <= usable,
        "larger-share-of-memory": total <= device,
        "raised-system-limit": pl.col("is_shared") & (total <= pl.col("memory_gib")),
        "smaller-cache-possible": ~pl.col("is_cache_stated") & (with_small_cache <= device),
        "offload-not-stated": ~pl.col("is_offload_stated"),
        "other-model-of-the-family": ~pl.col("is_same_model"),
        "within-5-percent": (total / device - 1).abs() <= NEAR_SHARE,
    }
    ran_only = [name for name in reasons if name not in ("reported-cause", "within-5-percent")]
    chosen: pl.Expr = pl.lit("unexplained")
    for name, rule in reversed(reasons.items()):
        applies = rule & (pl.col("outcome") == "ran") if name in ran_only else rule
        chosen = pl.when(applies.fill_null(False)).then(pl.lit(name)).otherwise(chosen)
    return chosen


def verdict_accuracy(audit: pl.LazyFrame) -> pl.LazyFrame:
    """The table `verdict_accuracy`: the audit counted by evidence, state, outcome and verdict.

    rows; share of all rows of that evidence, state and outcome; and unexplained_rows: wrong verdicts without
    a reason.
    """
    group = ["evidence", "state", "outcome"]
    counted = audit.with_columns(pl.col("evidence", "state", "outcome", "verdict", "reason").cast(pl.String))
    rows = counted.group_by(*group, "verdict").agg(
        rows=pl.len().cast(pl.Int32),
        explained_rows=(pl.col("reason").is_not_null() & (pl.col("reason") != "unexplained"))
        .sum()
        .cast(pl.Int32),
        unexplained_rows=(pl.col("reason") == "unexplained").sum().cast(pl.Int32),
    )
    share = pl.col("rows") / pl.col("rows").sum().over(group)
    return rows.with_columns(share=share.round(4)).sort(*group, "verdict")
