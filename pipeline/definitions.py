"""What Dagster loads: assets, checks, jobs and resources put together. Nothing is computed here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

import dagster as dg

from pipeline.checks import table_checks
from pipeline.contracts.grid import GridName
from pipeline.grid_resource import project_grid
from pipeline.jobs import build_job, source_job
from pipeline.partitions import gpu_partitions
from pipeline.progress import Messages, Progress
from pipeline.project import Project, project
from pipeline.table_io import locked_store, table_io
from pipeline.table_store import TableStore
from warehouse.dictionary import tables

GRID_VARIABLE = "TOKCUBE_GRID"  # the grid the Dagster UI builds; the command line has its own option


def assemble(
    built: Project,
    gpus: Sequence[str],
    assets: Sequence[dg.AssetsDefinition],
    progress: Progress | None = None,
    with_pictures: bool = True,
) -> dg.Definitions:
    """Definitions over the given assets: the checks of every table, the jobs, and the resources they share.

    `gpus` are the partitions of the cubes. Without `progress` the run's own log says how far it is.
    """
    store = TableStore(built.stage, built.version)
    progress = Messages(dg.get_dagster_logger().info) if progress is None else progress
    known = tables()
    names = {key.path[-1] for asset in assets for key in asset.keys}
    made = [one for name, one in known.items() if name in names]
    return dg.Definitions(
        assets=assets,
        asset_checks=[table_checks(one, gpus) for one in made],
        jobs=[
            build_job(gpu_partitions(gpus)),
            source_job(),
        ],
        resources={
            "io_manager": table_io(gpus, progress, with_pictures),
            "tables": locked_store(store),
            "progress": progress,
            "project": built,
            "grid": dg.ResourceDefinition(lambda _: project_grid(built)),
        },
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The repository's own definitions, for `dagster dev`; made when Dagster asks, not on import."""
    from pipeline.assets import all_assets  # here: tests assemble assets of their own
    from pipeline.contracts.sources import read_sources
    from pipeline.partitions import gpus_at_load

    grid = os.environ.get(GRID_VARIABLE, "full")
    if grid not in ("full", "core"):
        raise ValueError(f"{GRID_VARIABLE} must be full or core, not {grid!r}")
    built = project(grid=cast(GridName, grid))
    gpus = gpus_at_load(built)
    return assemble(built, gpus, all_assets(built, gpus, read_sources))
