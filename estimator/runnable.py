"""What the cubes may hold: the support rules composed into formats per GPU and models per framework. Pure
polars.

Only combinations that every rule lets run (`yes` or `partial`) are kept; unknown is not published as working.
Which rule decides what is in `support`.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from estimator.support import (
    SupportTables,
    compute_capability_number,
    is_runnable,
    refused_head_sizes,
    refused_shards,
    supported_architectures,
    supported_formats,
    supported_hardware,
    supported_kv_dtypes,
    supported_parallelism,
)

FORMAT = ("framework", "backend", "quant", "kv_dtype")


def gpu_formats(formats: pl.DataFrame, tables: SupportTables) -> pl.DataFrame:
    """gpu, format: which of the numbered `formats` (format and the `FORMAT` columns) each GPU can run.

    A format runs where its framework runs on the GPU through the backend, knows the weight format there, and
    the cache type. Sorted by gpu and format.
    """
    frameworks = tables.frameworks.join(formats.select("framework").unique(), on="framework", how="semi")
    quants = tables.quants.join(formats.select("quant").unique(), on="quant", how="semi")
    kv_dtypes = tables.kv_dtypes.join(
        formats.select("framework", "kv_dtype").unique(), on=["framework", "kv_dtype"], how="semi"
    )
    hardware = supported_hardware(frameworks, tables.gpus, tables.hardware_rules).filter(is_runnable())
    weights = supported_formats(frameworks, tables.gpus, quants, tables.format_rules).filter(is_runnable())
    caches = supported_kv_dtypes(frameworks, tables.gpus, kv_dtypes, tables.kv_dtype_rules).filter(
        is_runnable()
    )
    place = ["framework", "backend", "gpu"]
    return (
        formats.select("format", *FORMAT)
        .join(hardware.select(place), on=["framework", "backend"])
        .join(weights.select(*place, "quant"), on=[*place, "quant"], how="semi")
        .join(caches.select(*place, "kv_dtype"), on=[*place, "kv_dtype"], how="semi")
        .select("gpu", "format")
        .sort("gpu", "format")
    )


def model_settings(formats: pl.DataFrame, n_gpus: Sequence[int], tables: SupportTables) -> pl.DataFrame:
    """model, framework, kv_dtype, n_gpus, arch_min: where the framework knows the model's architecture, can
    split it over that many GPUs, and its cache type fits the model's heads.

    `arch_min`: the compute capability that the architecture needs there, if any. Sorted.
    """
    frameworks = tables.frameworks.join(formats.select("framework").unique(), on="framework", how="semi")
    caches = formats.select("framework", "kv_dtype").unique()
    kv_dtypes = tables.kv_dtypes.join(caches, on=["framework", "kv_dtype"], how="semi")
    known = supported_architectures(tables.models, frameworks, tables.architecture_rules).filter(
        is_runnable()
    )
    split = supported_parallelism(tables.models, frameworks, n_gpus, tables.parallelism_rules).filter(
        is_runnable()
    )
    refused = refused_head_sizes(tables.layers, kv_dtypes)
    return (
        known.select("model", "framework", "arch_min")
        .join(split.select("model", "framework", "n_gpus"), on=["model", "framework"])
        .join(caches, on="framework")
        .join(refused, on=["model", "framework", "kv_dtype"], how="anti")
        .select("model", "framework", "kv_dtype", "n_gpus", "arch_min")
        .sort("model", "framework", "kv_dtype", "n_gpus")
    )


def refused_splits(formats: pl.DataFrame, n_gpus: Sequence[int], tables: SupportTables) -> pl.DataFrame:
    """framework, quant, model, n_gpus that a weight format's own split rule refuses."""
    frameworks = tables.frameworks.join(formats.select("framework").unique(), on="framework", how="semi")
    quants = tables.quants.join(formats.select("quant").unique(), on="quant", how="semi")
    refused = refused_shards(tables.models, frameworks, quants, n_gpus, tables.parallelism_rules)
    return refused.filter(~is_runnable()).select("framework", "quant", "model", "n_gpus")


def gpu_classes(gpus: pl.DataFrame, formats: pl.DataFrame) -> pl.DataFrame:
    """gpu, gpu_class: GPUs of one class run the same recipes, so these are filtered once for all of them.

    `gpus`: gpu, n_gpus_max, compute_capability; `formats`: `gpu_formats`. GPUs that run nothing are left out.
    """
    sets = formats.group_by("gpu").agg(pl.col("format").sort().cast(pl.String).str.join(",").alias("formats"))
    return (
        gpus.select("gpu", "n_gpus_max", capability=compute_capability_number())
        .join(sets, on="gpu")
        .with_columns(gpu_class=pl.struct("formats", "n_gpus_max", "capability").rank("dense").cast(pl.Int32))
        .select("gpu", "gpu_class")
        .sort("gpu_class", "gpu")
    )
