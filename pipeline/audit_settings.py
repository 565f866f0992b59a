"""Lays the measured settings out and works out their memory: each at its own format, count and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from estimator import gpu_steps
from estimator import verdict_audit as audits
from pipeline import grid_tables
from pipeline.factor_tables import (
    WEIGHT_READS,
    cache_of,
    cache_steps_of,
    runtime_of,
    runtime_steps_of,
    weights_of,
)
from pipeline.gpu_recipes import own_system

READS = tuple(dict.fromkeys((
    *WEIGHT_READS,
    "gpus",
    "models",
    "layers",
    "quants",
    "frameworks",
    "framework_steps",
    "kv_dtypes",
    "coefficients",
    "llama_cpp_layers",
    "llama_cpp_compute",
    "anchors",
    "serving_anchors",
    "memory_reports",
)))  # fmt: skip


def verdict_audit(tables: Mapping[str, pl.DataFrame]) -> pl.LazyFrame:
    """The table `verdict_audit`. `tables`: all of `READS`, by name."""
    lazy = {name: grid_tables.in_text(frame.lazy()) for name, frame in tables.items()}
    # an engine without a stated way to split works layer by layer
    lazy["frameworks"] = lazy["frameworks"].with_columns(pl.col("parallel_mode").fill_null("layer"))
    settings = audits.in_steps(
        pl.concat(
            [
                audits.decode_settings(lazy["anchors"], lazy["models"]),
                audits.serving_settings(lazy["serving_anchors"]),
                audits.report_settings(
                    lazy["memory_reports"], lazy["gpus"], lazy["models"], lazy["frameworks"]
                ),
            ],
            how="vertical_relaxed",
        )
    ).collect()
    gpus = own_system(tables["gpus"]).select("gpu", "memory_gib", "usable_gib", "unified_memory")
    sizes = gpu_steps.sizes(lazy["framework_steps"])
    reached = gpu_steps.gpu_steps(gpus.lazy(), lazy["frameworks"], lazy["framework_steps"]).collect()
    settings = settings.join(reached, on=["gpu", "framework"], how="left").with_columns(
        pl.col("at_least_gib").fill_null(0)
    )
    numbered = grid_tables.with_facts(
        settings.select(audits.SETTING).unique(),
        lazy["frameworks"],
        lazy["quants"],
        _with_others_caches(lazy["kv_dtypes"], lazy["frameworks"]),
    )
    models = lazy["models"].with_columns(model_citation="citation")
    parts = [
        _factors(mine, numbered.filter(pl.col("framework") == name), models, lazy)
        for (name,), mine in settings.partition_by("framework", as_dict=True, maintain_order=True).items()
    ]
    weights, kv_cache, kv_cache_steps, runtime, runtime_steps = (
        pl.concat(part).lazy() for part in zip(*(pl.collect_all(part) for part in parts if part), strict=True)
    )
    return audits.verdict_audit(
        settings.lazy(),
        weights,
        gpu_steps.at_every_size(kv_cache, kv_cache_steps, gpu_steps.CACHE_KEY, "reserved_bytes", sizes),
        gpu_steps.at_every_size(runtime, runtime_steps, gpu_steps.RUNTIME_KEY, "runtime_bytes", sizes),
        numbered.select("framework", "memory_utilization", "share_of_free").unique().lazy(),
        gpus.lazy(),
    )


def _with_others_caches(kv_dtypes: pl.LazyFrame, frameworks: pl.LazyFrame) -> pl.LazyFrame:
    """The cache types, and for frameworks without one of a name the largest that any has under that name."""
    sizes = ("k_bytes_per_element", "v_bytes_per_element")
    anyones = (
        kv_dtypes.drop_nulls(sizes).group_by("kv_dtype").agg(pl.col(*sizes).max(), pl.col("citation").min())
    )
    others = (
        frameworks.select("framework")
        .join(anyones, how="cross")
        .join(kv_dtypes, on=["framework", "kv_dtype"], how="anti")
    )
    # what only an engine's own type states (bytes per head or row) is empty for the others
    return pl.concat([kv_dtypes, others], how="diagonal")


def _factors(
    settings: pl.DataFrame, numbered: pl.DataFrame, models: pl.LazyFrame, tables: Mapping[str, pl.LazyFrame]
) -> list[pl.LazyFrame]:
    """weights, kv_cache, kv_cache_steps, runtime and runtime_steps over one framework's models, counts and
    contexts; [] without a format.
    """
    if numbered.is_empty():
        return []
    mine = models.join(settings.select("model").unique().lazy(), on="model", how="semi")
    counts = settings.select(pl.col("n_gpus").cast(pl.Int64)).unique().sort("n_gpus").lazy()
    contexts = settings.select(pl.col("context_tokens").cast(pl.Int64)).unique().sort("context_tokens").lazy()
    # only windows take more cache on larger GPUs
    windowed = tables["layers"].filter(pl.col("window_tokens").is_not_null()).select("model").unique()
    on_larger = settings.filter(pl.col("at_least_gib") > 0).join(windowed.collect(), on="model", how="semi")
    some, of_some = (
        on_larger.select(pl.col(name).cast(pl.Int64)).unique() for name in ("context_tokens", "n_gpus")
    )
    larger = mine.join(on_larger.select("model").unique().lazy(), on="model", how="semi")
    asked = settings.lazy().select("model", "context_tokens", pl.col("n_gpus").cast(pl.Int16)).unique()
    at_contexts: list[Callable[..., pl.LazyFrame]] = [cache_of, runtime_of]
    kv_cache, runtime = (
        factor(numbered, contexts, counts, mine, tables).join(
            asked, on=["model", "context_tokens", "n_gpus"], how="semi"
        )
        for factor in at_contexts
    )
    return [
        weights_of(numbered, counts, mine, tables),
        kv_cache,
        cache_steps_of(numbered, some.sort("context_tokens").lazy(), of_some.lazy(), larger, tables),
        runtime,
        runtime_steps_of(numbered, counts, mine, tables),
    ]
