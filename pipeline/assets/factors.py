"""The factors of the cube that do not depend on the GPU: weights, KV cache and runtime memory, in bytes."""

import dagster as dg
import polars as pl

from estimator import kv_cache as kv_caches
from estimator import llama_cpp_compute as buffers
from estimator import runtime as runtimes
from estimator import weights as weight_bytes
from estimator.llama_cpp_context import with_llama_cpp_layers
from pipeline import grid_tables
from pipeline.assets.table_asset import table_asset
from pipeline.grid_resource import ProjectGrid


@table_asset()
def weights(
    grid: dg.ResourceParam[ProjectGrid],
    models: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    quants: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
) -> pl.LazyFrame:
    """Model x framework x quant x n_gpus: bytes on the device, on the host, in the file, read per token."""
    numbered = grid_tables.formats(grid.grid, frameworks, quants, kv_dtypes)
    return weight_bytes.weights(
        grid_tables.published_models(models, grid.span),
        grid_tables.weight_formats(numbered),
        grid_tables.gpu_counts(grid.span).lazy(),
    )


@table_asset()
def kv_cache(
    grid: dg.ResourceParam[ProjectGrid],
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    framework_steps: pl.LazyFrame,
    quants: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
) -> pl.LazyFrame:
    """Model x framework x kv_dtype x context x n_gpus: bytes needed, and bytes the engine reserves."""
    numbered = grid_tables.formats(grid.grid, frameworks, quants, kv_dtypes)
    spanned = grid_tables.published_models(models, grid.span)
    return kv_caches.kv_cache(
        spanned.select("model", "n_layers", "model_citation"),
        layers.join(spanned.select("model"), on="model", how="semi"),
        llama_cpp_layers.join(spanned.select("model"), on="model", how="semi"),
        grid_tables.cache_storages(numbered, frameworks, framework_steps),
        grid_tables.contexts(grid.span).lazy(),
        grid_tables.gpu_counts(grid.span).lazy(),
    )


@table_asset()
def runtime(
    grid: dg.ResourceParam[ProjectGrid],
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    llama_cpp_compute: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    quants: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
) -> pl.LazyFrame:
    """Model x framework x backend x context x n_gpus: bytes of compute buffers, graphs and the context."""
    numbered = grid_tables.formats(grid.grid, frameworks, quants, kv_dtypes)
    spanned = grid_tables.published_models(models, grid.span)
    shapes = buffers.compute_shapes(with_llama_cpp_layers(grid_tables.in_text(llama_cpp_layers)))
    return runtimes.runtime(
        spanned.select("model", "is_moe").join(runtimes.attention_shapes(layers), on="model"),
        buffers.with_coefficients(shapes, llama_cpp_compute),
        grid_tables.stacks(numbered, frameworks),
        grid_tables.contexts(grid.span).lazy(),
        grid_tables.gpu_counts(grid.span).lazy(),
    )
