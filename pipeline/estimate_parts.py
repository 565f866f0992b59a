"""Prepares the cube `estimates` once, then gives one GPU's rows at a time, ready to be streamed to a file.

Which recipe runs where, typed ids and the order of GPUs are decided here; physics is in `estimator.cube`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from estimator import calibration, cube, measured, runnable
from estimator.recipes import recipes
from pipeline import grid_tables
from pipeline.gpu_recipes import (
    SUPPORT_READS,
    RecipesByClass,
    at_known_ids,
    cube_ids,
    own_system,
    support_tables,
    typed_by,
)
from pipeline.grid_resource import ProjectGrid
from warehouse.dictionary import conform, cube_schema

CUBE = "estimates"
READS = (
    *SUPPORT_READS,
    "coefficients",
    "weights",
    "kv_cache",
    "runtime",
    "anchors",
)


@dataclass
class EstimateParts:
    """All that the parts share: recipes of every GPU, rates of the GPUs, measurements, and the ids."""

    ids: Mapping[str, Sequence[str]]
    gpus: pl.DataFrame
    recipes: RecipesByClass
    stacks: pl.DataFrame
    measured_start: pl.DataFrame
    measured_full: pl.DataFrame

    def part(self, gpu: str) -> pl.LazyFrame:
        """One GPU's rows in the cube's columns and types, sorted by the cube's key."""
        facts = self.gpus.row(by_predicate=pl.col("gpu") == gpu, named=True)
        mine = pl.col("gpu") == gpu
        rows = cube.estimates(
            self.recipes.of(facts),
            facts,
            self.stacks.filter(mine).drop("gpu"),
            self.measured_start.filter(mine).drop("gpu"),
            self.measured_full.filter(mine).drop("gpu"),
        )
        return conform(rows, CUBE, self.ids)


def prepare(grid: ProjectGrid, gpus: Sequence[str], tables: Mapping[str, pl.DataFrame]) -> EstimateParts:
    """Work out everything the parts share. `gpus`: those of the grid; `tables`: all of `READS`, by name."""
    lazy = {name: frame.lazy() for name, frame in tables.items()}
    anchors = grid_tables.in_text(lazy["anchors"])
    on_grid = own_system(tables["gpus"].filter(pl.col("gpu").is_in(list(gpus))))
    spanned = grid_tables.published_models(lazy["models"], grid.span)
    formats = grid_tables.formats(grid.grid, lazy["frameworks"], lazy["quants"], lazy["kv_dtypes"])
    support = support_tables(on_grid, spanned.collect(), tables)
    ids = cube_ids(tables)
    typed = typed_by(cube_schema(CUBE, ids))
    left = recipes(
        typed(grid_tables.without_densities(formats)),
        typed(runnable.model_settings(formats, grid.span.n_gpus, support).lazy()),
        typed(runnable.refused_splits(formats, grid.span.n_gpus, support).lazy()),
        typed(spanned),
        typed(lazy["layers"]),
        typed(lazy["weights"]),
        typed(lazy["kv_cache"]),
        typed(lazy["runtime"]),
        tables["coefficients"],
        grid.grid.extended_context_factor,
    ).collect()
    engines = lazy["frameworks"].select("framework", "engine")
    accepted = measured.accepted_decode(anchors).join(engines, on="framework")
    # evidence of every GPU counts, also of those outside the grid
    evidence = measured.evidence(accepted, lazy["gpus"]).collect()
    rates = calibration.gpu_coefficients(on_grid, tables["coefficients"])
    full = measured.measured_full(anchors, grid_tables.contexts(grid.span).lazy())
    return EstimateParts(
        ids=ids,
        gpus=on_grid,
        recipes=RecipesByClass(left, runnable.gpu_formats(formats, support), on_grid),
        stacks=typed(cube.stacks(rates, evidence, tables["coefficients"], formats).lazy()).collect(),
        measured_start=typed(at_known_ids(measured.measured_start(anchors), ids)).collect(),
        measured_full=typed(at_known_ids(full, ids)).collect(),
    )
