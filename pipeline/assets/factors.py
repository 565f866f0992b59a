"""The factors of the cube that do not depend on the GPU: weights, KV cache and runtime memory, in bytes."""

import dagster as dg
import polars as pl

from estimator import gguf_headers as headers
from pipeline import grid_tables
from pipeline.assets.table_asset import table_asset
from pipeline.factor_tables import kv_cache_at, kv_cache_steps_at, runtime_at, runtime_steps_at, weights_of
from pipeline.grid_resource import ProjectGrid


@table_asset()
def weights(
    grid: dg.ResourceParam[ProjectGrid],
    models: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    quants: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    stored_weights: pl.LazyFrame,
    tensors: pl.LazyFrame,
    quantize_facts: pl.LazyFrame,
    gguf_mix_rules: pl.LazyFrame,
    gguf_fallbacks: pl.LazyFrame,
) -> pl.LazyFrame:
    """Model x framework x quant x n_gpus: bytes on the device, on the host, in the file, read per token."""
    tables = {
        "stored_weights": stored_weights, "tensors": tensors, "quantize_facts": quantize_facts,
        "gguf_mix_rules": gguf_mix_rules, "gguf_fallbacks": gguf_fallbacks, "quants": quants,
    }  # fmt: skip
    numbered = grid_tables.formats(grid.grid, frameworks, quants, kv_dtypes)
    return weights_of(
        numbered,
        grid_tables.gpu_counts(grid.span).lazy(),
        grid_tables.published_models(models, grid.span),
        tables,
    )


@table_asset()
def gguf_headers(tensors: pl.LazyFrame, models: pl.LazyFrame, gguf_tokenizers: pl.LazyFrame) -> pl.LazyFrame:
    """Model x with_mtp: bytes of a GGUF file besides its tensors."""
    census = grid_tables.census(grid_tables.in_text(tensors))
    return headers.gguf_headers(census, grid_tables.in_text(models), grid_tables.in_text(gguf_tokenizers))


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
    tables = {
        "layers": layers,
        "llama_cpp_layers": llama_cpp_layers,
        "frameworks": frameworks,
        "framework_steps": framework_steps,
        "quants": quants,
        "kv_dtypes": kv_dtypes,
    }
    return kv_cache_at(
        grid_tables.contexts(grid.span).lazy(), grid_tables.published_models(models, grid.span), grid, tables
    )


@table_asset()
def runtime(
    grid: dg.ResourceParam[ProjectGrid],
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    llama_cpp_compute: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    framework_steps: pl.LazyFrame,
    quants: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    coefficients: pl.DataFrame,
) -> pl.LazyFrame:
    """Model x framework x backend x context x n_gpus: bytes of compute buffers, graphs and the context."""
    tables = {
        "layers": layers, "frameworks": frameworks, "framework_steps": framework_steps, "quants": quants,
        "kv_dtypes": kv_dtypes, "coefficients": coefficients.lazy(),
        "llama_cpp_layers": llama_cpp_layers, "llama_cpp_compute": llama_cpp_compute,
    }  # fmt: skip
    return runtime_at(
        grid_tables.contexts(grid.span).lazy(), grid_tables.published_models(models, grid.span), grid, tables
    )


@table_asset()
def kv_cache_steps(
    grid: dg.ResourceParam[ProjectGrid],
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    framework_steps: pl.LazyFrame,
    quants: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
) -> pl.LazyFrame:
    """As `kv_cache`, by GPU memory: bytes that engines reserve beyond it on larger GPUs."""
    tables = {
        "layers": layers, "llama_cpp_layers": llama_cpp_layers, "frameworks": frameworks,
        "framework_steps": framework_steps, "quants": quants, "kv_dtypes": kv_dtypes,
    }  # fmt: skip
    return kv_cache_steps_at(
        grid_tables.contexts(grid.span).lazy(), grid_tables.published_models(models, grid.span), grid, tables
    )


@table_asset()
def runtime_steps(
    grid: dg.ResourceParam[ProjectGrid],
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    framework_steps: pl.LazyFrame,
    quants: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    coefficients: pl.DataFrame,
) -> pl.LazyFrame:
    """Model x framework x n_gpus x GPU memory: bytes that engines take beyond `runtime` on larger GPUs."""
    tables = {
        "layers": layers, "frameworks": frameworks, "framework_steps": framework_steps, "quants": quants,
        "kv_dtypes": kv_dtypes, "coefficients": coefficients.lazy(),
    }  # fmt: skip
    return runtime_steps_at(grid_tables.published_models(models, grid.span), grid, tables)
