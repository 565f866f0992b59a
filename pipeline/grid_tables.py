"""Lays the grid and the source tables out as the estimator's inputs. Joins only, no physics."""

from __future__ import annotations

import polars as pl
from polars import selectors

from estimator.anchor_settings import QUANT_COLUMNS
from estimator.kv_cache import engine_windows
from estimator.tensor_census import CENSUS
from pipeline.contracts.grid import Grid, Span
from pipeline.contracts.model_tables import OUTSIDE

FORMAT = ("framework", "backend", "quant", "kv_dtype")


def contexts(span: Span) -> pl.DataFrame:
    """The contexts of the grid: context_tokens."""
    return pl.DataFrame({"context_tokens": span.contexts_tokens}, schema={"context_tokens": pl.Int64})


def gpu_counts(span: Span) -> pl.DataFrame:
    """The numbers of GPUs of the grid: n_gpus."""
    return pl.DataFrame({"n_gpus": span.n_gpus}, schema={"n_gpus": pl.Int64})


def published_models(models: pl.LazyFrame, span: Span) -> pl.LazyFrame:
    """The published models that the grid spans (all, when it names none), with model_citation."""
    named = pl.col("model").is_in(span.models) if span.models else pl.lit(True)
    return models.filter(pl.col("published") & named).with_columns(model_citation="citation")


def formats(
    grid: Grid, frameworks: pl.LazyFrame, quants: pl.LazyFrame, kv_dtypes: pl.LazyFrame
) -> pl.DataFrame:
    """The grid's formats, see `with_facts`."""
    return with_facts(grid.format_rows(), frameworks, quants, kv_dtypes)


def with_facts(
    rows: pl.DataFrame, frameworks: pl.LazyFrame, quants: pl.LazyFrame, kv_dtypes: pl.LazyFrame
) -> pl.DataFrame:
    """Formats (the columns `FORMAT`), numbered in that order, with what the estimator reads of each part.

    Adds engine, parallel_mode, memory_utilization, share_of_free, framework_citation; quant_class, the
    densities, scope, compute_dtype, quant_citation; the bytes per element of keys and values,
    kv_dtype_citation.
    """
    engines = frameworks.select(
        "framework",
        "engine",
        "parallel_mode",
        "serves",
        memory_utilization=pl.when(pl.col("memory_policy") == "utilization_of_total").then("memory_fraction"),
        share_of_free=pl.when(pl.col("memory_policy") == "fraction_of_free").then("memory_fraction"),
        framework_citation="citation",
    )
    densities = quants.select(*QUANT_COLUMNS, quant_citation="citation")
    caches = kv_dtypes.select(
        "framework",
        "kv_dtype",
        "k_bytes_per_element",
        "v_bytes_per_element",
        "k_bytes_per_head",
        "v_bytes_per_head",
        "sparse_latent_bytes",
        "bytes_per_row",
        kv_dtype_citation="citation",
    )
    return (
        rows.lazy()
        .join(engines, on="framework")
        .join(densities, on="quant")
        .join(caches, on=["framework", "kv_dtype"])
        .sort(FORMAT)
        .with_row_index("format")
        .pipe(in_text)
        .collect()
    )


def in_text(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The frame with its closed sets as text, which joins with other text and can be typed as ids."""
    return frame.with_columns(selectors.enum().cast(pl.String))


def without_densities(numbered: pl.DataFrame) -> pl.LazyFrame:
    """The formats without what only weights need (the table `weights` carries the quant's citation)."""
    return numbered.lazy().drop(
        "body_bpw", "rest_bpw", "embedding_bpw", "head_bpw", "scope", "quant_citation"
    )


def serving_formats(grid: Grid, numbered: pl.DataFrame) -> pl.DataFrame:
    """The formats of engines that serve many requests, on the maker's own stack, with the grid's caches."""
    return numbered.filter(
        "serves", pl.col("backend") != "vulkan", pl.col("kv_dtype").is_in(grid.serving.kv_dtypes)
    )


def census(tensors: pl.LazyFrame) -> pl.LazyFrame:
    """The table `tensors` as `estimator.tensor_census.census` gave it: no group outside the layers."""
    return tensors.select(CENSUS).with_columns(
        pl.col("n_matrices", "n_layers").cast(pl.Int64),
        group=pl.when(pl.col("group") != OUTSIDE).then("group"),
    )


def weight_formats(numbered: pl.DataFrame) -> pl.LazyFrame:
    """The formats once per framework and quant: weights do not depend on the backend or the cache."""
    return numbered.lazy().unique(["framework", "quant"], keep="first", maintain_order=True)


def cache_storages(
    numbered: pl.DataFrame, frameworks: pl.LazyFrame, framework_steps: pl.LazyFrame
) -> pl.LazyFrame:
    """The formats once per framework and kv_dtype, with how the engine rounds windows and contexts."""
    once = numbered.lazy().unique(["framework", "kv_dtype"], keep="first", maintain_order=True)
    return once.join(engine_windows(frameworks, framework_steps), on="framework")


def stacks(numbered: pl.DataFrame, frameworks: pl.LazyFrame) -> pl.LazyFrame:
    """The formats once per framework and backend, with the framework's facts and framework_citation."""
    once = numbered.lazy().select("framework", "backend").unique(maintain_order=True)
    return once.join(frameworks.with_columns(framework_citation="citation"), on="framework")
