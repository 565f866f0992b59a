"""The cubes' partitions: one per published gpu of the grid, all filled by one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import dagster as dg
import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, SourceFaults
from pipeline.contracts.gpus import read_gpus
from pipeline.contracts.grid import Span
from pipeline.grid_resource import project_grid
from pipeline.progress import Progress
from pipeline.project import Project
from pipeline.side_by_side import side_by_side
from pipeline.table_store import TableStore

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
_SHOWN = 5


class StalePartitions(Exception):
    """The sources have other gpus than when Dagster loaded this code location."""


def published_gpus(gpus: pl.DataFrame, span: Span) -> list[str]:
    """The published gpus that the grid spans, sorted; an empty list in the grid means every one."""
    published = set(gpus.filter(pl.col("published")).get_column("gpu").to_list())
    return sorted(published & set(span.gpus) if span.gpus else published)


def gpus_at_load(built: Project) -> list[str]:
    """The partitions as the sources give them now, for the UI. The source assets name faults, not this."""
    try:
        span = project_grid(built).span
    except SourceFaults:
        return []
    return published_gpus(read_gpus(built.sources, FaultLog(built.sources), CitationUse())["gpus"], span)


def gpu_partitions(gpus: Collection[str]) -> dg.StaticPartitionsDefinition:
    """One partition per gpu, in name order."""
    return dg.StaticPartitionsDefinition(sorted(gpus))


def every_partition(partitions: dg.StaticPartitionsDefinition) -> dict[str, str]:
    """The tags with which one run fills all partitions; no tags when there are none."""
    keys = partitions.get_partition_keys()
    return {RANGE_START: keys[0], RANGE_END: keys[-1]} if keys else {}


def check_current(loaded: Collection[str], published: Collection[str]) -> None:
    """Raise StalePartitions when the gpus known at load time are not the published ones any more."""
    changes = {"new": set(published) - set(loaded), "gone": set(loaded) - set(published)}
    if any(changes.values()):
        said = "; ".join(f"{what}: {_some(gpus)}" for what, gpus in changes.items() if gpus)
        raise StalePartitions(f"the gpus in sources/ have changed, reload the code location ({said})")


def _some(gpus: Collection[str]) -> str:
    shown = ", ".join(sorted(gpus)[:_SHOWN])
    return shown if len(gpus) <= _SHOWN else f"{shown} and {len(gpus) - _SHOWN} more"


def fill_partitions(
    context: dg.AssetExecutionContext,
    tables: TableStore,
    progress: Progress,
    part: Callable[[str], pl.DataFrame | pl.LazyFrame],
    in_order: Callable[[Sequence[str]], Sequence[str]] = sorted,
) -> int:
    """Stage every part of a cube that the run asks for, two gpus at a time; returns the rows of these parts.

    `part(gpu)` gives one gpu's rows in the cube's columns and types; lazy ones are streamed to the file.
    Parts of gpus that are no partition any more are removed first. `in_order` puts gpus that share work side
    by side.
    """
    table, gpus = context.asset_key.path[-1], in_order(context.partition_keys)
    partitions = context.assets_def.partitions_def
    assert isinstance(partitions, dg.StaticPartitionsDefinition)
    gone = tables.drop_other_partitions(table, partitions.get_partition_keys())
    if gone:
        context.log.info(f"{table}: removed the parts of {', '.join(gone)}, which are not built any more")
    progress.start(table, len(gpus))
    total = 0
    for gpu, rows in side_by_side(lambda gpu: tables.write_partition(table, gpu, part(gpu)), gpus):
        total += rows
        context.add_asset_metadata({"dagster/partition_row_count": rows}, partition_key=gpu)
        progress.advance(table, gpu, rows)
    progress.wrote(table, total)
    return total
