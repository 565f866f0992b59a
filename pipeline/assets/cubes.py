"""The cubes: one partition per gpu, all of them filled by one run, streamed to files one after the other."""

import dagster as dg

from pipeline import estimate_parts, serving_parts
from pipeline.assets.table_asset import cube_asset
from pipeline.grid_resource import ProjectGrid
from pipeline.partitions import check_current, fill_partitions, published_gpus
from pipeline.progress import Progress
from pipeline.table_store import TableStore


def cube_assets(partitions: dg.StaticPartitionsDefinition) -> list[dg.AssetsDefinition]:
    """The assets of the room `cubes` over the given gpus."""

    @cube_asset(partitions, deps=estimate_parts.READS)
    def estimates(
        context: dg.AssetExecutionContext,
        tables: dg.ResourceParam[TableStore],
        progress: dg.ResourceParam[Progress],
        grid: dg.ResourceParam[ProjectGrid],
    ) -> None:
        """Every recipe that a GPU can run: memory, verdict, speeds, their bound, and what was measured."""
        read = tables.read(estimate_parts.READS)
        gpus = published_gpus(read["gpus"], grid.span)
        check_current(partitions.get_partition_keys(), gpus)
        parts = estimate_parts.prepare(grid, gpus, read)
        context.log.info(f"{parts.recipes.recipes.height:,} recipes for {len(gpus)} gpus")
        fill_partitions(context, tables, progress, parts.part, parts.in_order)

    @cube_asset(partitions, deps=serving_parts.READS)
    def serving(
        context: dg.AssetExecutionContext,
        tables: dg.ResourceParam[TableStore],
        progress: dg.ResourceParam[Progress],
        grid: dg.ResourceParam[ProjectGrid],
    ) -> None:
        """Every workload and concurrency that a GPU can serve: throughput, latency, and what limits it."""
        read = tables.read(serving_parts.READS)
        gpus = published_gpus(read["gpus"], grid.span)
        check_current(partitions.get_partition_keys(), gpus)
        parts = serving_parts.prepare(grid, gpus, read)
        context.log.info(f"{parts.recipes.recipes.height:,} recipes for {len(gpus)} gpus")
        fill_partitions(context, tables, progress, parts.part, parts.in_order)

    return [estimates, serving]
