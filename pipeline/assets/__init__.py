"""The assets, one module per room. Thin: they read tables, call one function and return one frame."""

from collections.abc import Sequence

import dagster as dg

from pipeline.assets.cubes import cube_assets
from pipeline.assets.evidence import (
    accuracy,
    anchor_residuals,
    anchor_resolution,
    best_fit,
    capacity,
    file_size_accuracy,
    file_size_residuals,
    memory_accuracy,
    memory_plan_accuracy,
    memory_plan_residuals,
    memory_residuals,
    rule_of_thumb,
    verdict_accuracy,
    verdict_audit,
)
from pipeline.assets.factors import gguf_headers, kv_cache, kv_cache_steps, runtime, runtime_steps, weights
from pipeline.assets.release import release_asset
from pipeline.assets.sources import ReadSources, source_assets
from pipeline.partitions import gpu_partitions
from pipeline.project import Project
from warehouse.dictionary import tables

FACTORS = (weights, gguf_headers, kv_cache, kv_cache_steps, runtime, runtime_steps)
EVIDENCE = (
    anchor_residuals,
    anchor_resolution,
    accuracy,
    file_size_residuals,
    file_size_accuracy,
    memory_residuals,
    memory_accuracy,
    memory_plan_residuals,
    memory_plan_accuracy,
    best_fit,
    capacity,
    rule_of_thumb,
    verdict_audit,
    verdict_accuracy,
)


def all_assets(built: Project, gpus: Sequence[str], read: ReadSources) -> list[dg.AssetsDefinition]:
    """Every asset of the project. `gpus` are the cubes' partitions, `read(root)` gives the source tables.

    A table of the dictionary that no asset computes is read from the sources.
    """
    computed = [*FACTORS, *cube_assets(gpu_partitions(gpus)), *EVIDENCE]
    names = {key.path[-1] for asset in computed for key in asset.keys}
    read_tables = {name: one for name, one in tables().items() if name not in names and not one.is_cube}
    return [source_assets(read_tables, built.sources, read), *computed, release_asset(sorted(tables()))]
