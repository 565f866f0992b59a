"""Weights, KV cache and runtime memory for any formats, counts and contexts: one place for those who ask.

The factor tables ask for the grid's, the limits for other contexts, the audit for what people ran.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from estimator import gguf_files
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


def _of_grid(grid: ProjectGrid, tables: Tables) -> pl.DataFrame:
    return grid_tables.formats(grid.grid, tables["frameworks"], tables["quants"], tables["kv_dtypes"])
