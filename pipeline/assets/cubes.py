"""The cubes: one partition per gpu, all of them filled by one run, streamed to files two at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import dagster as dg
import polars as pl

from pipeline import estimate_parts, limit_parts, serving_parts
from pipeline.assets.table_asset import cube_asset
from pipeline.gpu_recipes import RecipesByClass
from pipeline.grid_resource import ProjectGrid
from pipeline.partitions import check_current, fill_partitions, published_gpus
from pipeline.progress import Progress
from pipeline.table_store import TableStore


class Parts(Protocol):
    """A cube whose recipes are worked out: it gives one gpu's rows at a time."""

    recipes: RecipesByClass

    def part(self, gpu: str) -> pl.DataFrame | pl.LazyFrame:
        """One gpu's rows in the cube's columns and types."""
        ...


Prepare = Callable[[ProjectGrid, Sequence[str], Mapping[str, pl.DataFrame]], Parts]


def cube_assets(partitions: dg.StaticPartitionsDefinition) -> list[dg.AssetsDefinition]:
    """The assets of the room `cubes` over the given gpus."""

    def fill(
        context: dg.AssetExecutionContext,
        tables: TableStore,
        progress: Progress,
        grid: ProjectGrid,
        reads: Sequence[str],
        prepare: Prepare,
    ) -> None:
        read = tables.read(reads)
        gpus = published_gpus(read["gpus"], grid.span)
        check_current(partitions.get_partition_keys(), gpus)
        parts = prepare(grid, gpus, read)
        context.log.info(f"{parts.recipes.recipes.height:,} recipes for {len(gpus)} gpus")
        fill_partitions(context, tables, progress, parts.part, parts.recipes.in_order)

    @cube_asset(partitions, deps=estimate_parts.READS)
    def estimates(
        context: dg.AssetExecutionContext,
        tables: dg.ResourceParam[TableStore],
        progress: dg.ResourceParam[Progress],
        grid: dg.ResourceParam[ProjectGrid],
    ) -> None:
        """Every recipe that a GPU can run: memory, verdict, speeds, their bound, and what was measured."""
        fill(context, tables, progress, grid, estimate_parts.READS, estimate_parts.prepare)

    @cube_asset(partitions, deps=serving_parts.READS)
    def serving(
        context: dg.AssetExecutionContext,
        tables: dg.ResourceParam[TableStore],
        progress: dg.ResourceParam[Progress],
        grid: dg.ResourceParam[ProjectGrid],
    ) -> None:
        """Every workload and concurrency that a GPU can serve: throughput, latency, and what limits it."""
        fill(context, tables, progress, grid, serving_parts.READS, serving_parts.prepare)

    @cube_asset(partitions, deps=limit_parts.READS)
    def limits(
        context: dg.AssetExecutionContext,
        tables: dg.ResourceParam[TableStore],
        progress: dg.ResourceParam[Progress],
        grid: dg.ResourceParam[ProjectGrid],
    ) -> None:
        """How long a context, and how many requests, the memory of each GPU holds."""
        fill(context, tables, progress, grid, limit_parts.READS, limit_parts.prepare)

    return [estimates, serving, limits]
