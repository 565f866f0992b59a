"""KV cache and runtime memory at any contexts: the grid's for the factor tables, others for the limits."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from estimator import kv_cache as kv_caches
from estimator import runtime as runtimes
from pipeline import grid_tables
from pipeline.grid_resource import ProjectGrid

Tables = Mapping[str, pl.LazyFrame]


def kv_cache_at(
    contexts: pl.LazyFrame, models: pl.LazyFrame, grid: ProjectGrid, tables: Tables
) -> pl.LazyFrame:
    """The columns of the table `kv_cache` at the given contexts (context_tokens) for the given models.

    `models`: `grid_tables.published_models`; `tables`: layers, frameworks, framework_steps, quants, kv_dtypes.
    """
    numbered = grid_tables.formats(grid.grid, tables["frameworks"], tables["quants"], tables["kv_dtypes"])
    return kv_caches.kv_cache(
        models.select("model", "model_type", "n_layers", "model_citation"),
        tables["layers"].join(models.select("model"), on="model", how="semi"),
        grid_tables.cache_storages(numbered, tables["frameworks"], tables["framework_steps"]),
        contexts,
        grid_tables.gpu_counts(grid.span).lazy(),
    )


def runtime_at(
    contexts: pl.LazyFrame, models: pl.LazyFrame, grid: ProjectGrid, tables: Tables
) -> pl.LazyFrame:
    """The columns of the table `runtime` at the given contexts for the given models; inputs as above."""
    numbered = grid_tables.formats(grid.grid, tables["frameworks"], tables["quants"], tables["kv_dtypes"])
    return runtimes.runtime(
        models.join(runtimes.attention_shapes(tables["layers"]), on="model"),
        grid_tables.stacks(numbered, tables["frameworks"]),
        contexts,
        grid_tables.gpu_counts(grid.span).lazy(),
    )
