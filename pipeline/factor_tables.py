"""Weights, KV cache and runtime memory for any formats, counts and contexts: one place for those who ask.

The factor tables ask for the grid's, the limits for other contexts, the audit for what people ran.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from estimator import engine_runtime as engine_runtimes
from estimator import gguf_files, gpu_steps
from estimator import kv_cache as kv_caches
from estimator import llama_cpp_compute as buffers
from estimator import runtime as runtimes
from estimator import weights as weight_bytes
from estimator.llama_cpp_context import with_llama_cpp_layers
from pipeline import grid_tables
from pipeline.grid_resource import ProjectGrid

Tables = Mapping[str, pl.LazyFrame]
WEIGHT_READS = ("stored_weights", "tensors", "quantize_facts", "gguf_mix_rules", "gguf_fallbacks", "quants")


def weights_of(
    numbered: pl.DataFrame, counts: pl.LazyFrame, models: pl.LazyFrame, tables: Tables
) -> pl.LazyFrame:
    """The columns of `weights` for any formats (`grid_tables.with_facts`) and counts (n_gpus).

    `models`: `grid_tables.published_models`; `tables`: `WEIGHT_READS`.
    """
    named = {name: grid_tables.in_text(tables[name]) for name in WEIGHT_READS}
    spanned = models.select("model")
    formats = grid_tables.weight_formats(numbered)
    dealt = formats.filter(pl.col("engine").is_in(weight_bytes.LLAMA_CPP_FAMILY))
    several = counts.filter(pl.col("n_gpus") > 1)
    splits = gguf_files.fullest_bytes(
        grid_tables.census(named["tensors"]).join(spanned, on="model", how="semi"),
        named["quantize_facts"].join(spanned, on="model", how="semi"),
        named["gguf_mix_rules"],
        named["gguf_fallbacks"],
        named["quants"],
        dealt,
        several,
    )
    return weight_bytes.weights(
        named["stored_weights"],
        models.select("model", "n_layers", "vocab_size", "n_experts", "n_experts_used", "model_citation"),
        formats.select("framework", "engine", "parallel_mode", "quant", "quant_citation").join(
            _mix_citations(named["gguf_mix_rules"]), on="quant", how="left"
        ),
        splits.collect().lazy(),
        counts,
    )


def _mix_citations(rules: pl.LazyFrame) -> pl.LazyFrame:
    """quant, mix_citation: the source of the last rule of each file type, the one that always holds."""
    return rules.sort("order").group_by("quant").agg(mix_citation=pl.col("citation").last())


def kv_cache_at(
    contexts: pl.LazyFrame, models: pl.LazyFrame, grid: ProjectGrid, tables: Tables
) -> pl.LazyFrame:
    """The table `kv_cache` of the grid's formats and counts, at the given contexts for the given models.

    `contexts`: context_tokens; `models`: `grid_tables.published_models`; `tables`: layers,
    llama_cpp_layers, frameworks, framework_steps, quants, kv_dtypes.
    """
    return cache_of(
        _of_grid(grid, tables), contexts, grid_tables.gpu_counts(grid.span).lazy(), models, tables
    )


def runtime_at(
    contexts: pl.LazyFrame, models: pl.LazyFrame, grid: ProjectGrid, tables: Tables
) -> pl.LazyFrame:
    """As `kv_cache_at`, the table `runtime`."""
    return runtime_of(
        _of_grid(grid, tables), contexts, grid_tables.gpu_counts(grid.span).lazy(), models, tables
    )


def cache_of(
    numbered: pl.DataFrame, contexts: pl.LazyFrame, counts: pl.LazyFrame, models: pl.LazyFrame, tables: Tables
) -> pl.LazyFrame:
    """The columns of `kv_cache` for any formats (`grid_tables.with_facts`) and counts (n_gpus)."""
    return kv_caches.kv_cache(
        models.select("model", "model_type", "n_layers", "model_citation"),
        tables["layers"].join(models.select("model"), on="model", how="semi"),
        tables["llama_cpp_layers"].join(models.select("model"), on="model", how="semi"),
        grid_tables.cache_storages(numbered, tables["frameworks"], tables["framework_steps"]),
        contexts,
        counts,
    )


def runtime_of(
    numbered: pl.DataFrame, contexts: pl.LazyFrame, counts: pl.LazyFrame, models: pl.LazyFrame, tables: Tables
) -> pl.LazyFrame:
    """As `cache_of`, the columns of `runtime`; `tables`: llama_cpp_compute and coefficients too."""
    seen = buffers.compute_shapes(with_llama_cpp_layers(grid_tables.in_text(tables["llama_cpp_layers"])))
    return runtimes.runtime(
        models.join(runtimes.attention_shapes(tables["layers"]), on="model"),
        buffers.with_coefficients(seen, tables["llama_cpp_compute"]),
        grid_tables.stacks(numbered, tables["frameworks"]),
        contexts,
        counts,
        tables["framework_steps"],
        tables["coefficients"].collect(),
    )


def kv_cache_steps_at(
    contexts: pl.LazyFrame, models: pl.LazyFrame, grid: ProjectGrid, tables: Tables
) -> pl.LazyFrame:
    """As `kv_cache_at`, the table `kv_cache_steps`."""
    return cache_steps_of(
        _of_grid(grid, tables), contexts, grid_tables.gpu_counts(grid.span).lazy(), models, tables
    )


def runtime_steps_at(models: pl.LazyFrame, grid: ProjectGrid, tables: Tables) -> pl.LazyFrame:
    """The table `runtime_steps` of the grid's formats and counts; `tables`: layers, frameworks,
    framework_steps, quants, kv_dtypes, coefficients.
    """
    return runtime_steps_of(_of_grid(grid, tables), grid_tables.gpu_counts(grid.span).lazy(), models, tables)


def cache_steps_of(
    numbered: pl.DataFrame, contexts: pl.LazyFrame, counts: pl.LazyFrame, models: pl.LazyFrame, tables: Tables
) -> pl.LazyFrame:
    """As `cache_of`, the columns of `kv_cache_steps`: what is in flight beside windows on larger GPUs."""
    key = list(gpu_steps.CACHE_KEY)
    windowed = tables["layers"].filter(pl.col("window_tokens").is_not_null()).select("model")
    some = models.join(windowed.unique(), on="model", how="semi")
    grouped = grid_tables.in_text(tables["frameworks"]).filter(
        pl.col("cache_layout") == "block_groups", pl.col("cache_batches_in_flight").is_not_null()
    )
    steps = tables["framework_steps"].filter(pl.col("setting") == "prefill_tokens")
    taken = steps.join(grouped.select("framework", framework_citation="citation"), on="framework").filter(
        pl.col("framework").is_in(numbered.get_column("framework").unique().implode())
    )
    named = taken.select("framework", "framework_citation").unique()

    def reserved(at_least: float) -> pl.LazyFrame:
        held = steps.join(named, on="framework", how="semi").filter(pl.col("at_least") <= at_least)
        last = held.sort("at_least").group_by("framework").last().with_columns(at_least=pl.lit(0.0))
        mine = numbered.join(named.collect(), on="framework", how="semi")
        at_step = {**tables, "framework_steps": last.select(steps.collect_schema().names())}
        return cache_of(mine, contexts, counts, some, at_step).select(*key, "reserved_bytes")

    larger = taken.filter(pl.col("at_least") > 0).select("at_least").unique().sort("at_least").collect()
    base = reserved(0.0).rename({"reserved_bytes": "base_bytes"})
    parts = [
        reserved(at_least)
        .join(base, on=key)
        .with_columns(at_least_gib=pl.lit(at_least).cast(gpu_steps.SIZE))
        .filter(pl.col("reserved_bytes") != pl.col("base_bytes"))
        for at_least in larger.to_series()
    ]
    every = pl.concat(parts) if parts else base.clear().with_columns(
        reserved_bytes="base_bytes", at_least_gib=pl.lit(0).cast(gpu_steps.SIZE)
    )  # fmt: skip
    return (
        every.join(named, on="framework")
        .select(
            *key,
            "at_least_gib",
            extra_bytes=pl.col("reserved_bytes") - pl.col("base_bytes"),
            framework_citation="framework_citation",
        )
        .sort(*key, "at_least_gib")
    )


def runtime_steps_of(
    numbered: pl.DataFrame, counts: pl.LazyFrame, models: pl.LazyFrame, tables: Tables
) -> pl.LazyFrame:
    """As `runtime_of`, the columns of `runtime_steps`."""
    engines = grid_tables.stacks(numbered, tables["frameworks"]).unique("framework", keep="any")
    return engine_runtimes.runtime_steps(
        models.join(runtimes.attention_shapes(tables["layers"]), on="model"),
        engines.drop("backend"),
        counts,
        tables["framework_steps"],
        tables["coefficients"].collect(),
    )


def _of_grid(grid: ProjectGrid, tables: Tables) -> pl.DataFrame:
    return grid_tables.formats(grid.grid, tables["frameworks"], tables["quants"], tables["kv_dtypes"])
