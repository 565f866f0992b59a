"""Prepares the cube `serving` once, then gives one GPU's rows at a time; as `estimate_parts` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from estimator import calibration, cube, measured, runnable, serving_cube
from pipeline import grid_tables
from pipeline.gpu_recipes import (
    SUPPORT_READS,
    RecipesByClass,
    cube_ids,
    own_system,
    support_tables,
    typed_by,
)
from pipeline.grid_resource import ProjectGrid
from warehouse.dictionary import conform, cube_schema

CUBE = "serving"
READS = (*SUPPORT_READS, "coefficients", "weights", "serving_anchors")


@dataclass
class ServingParts:
    """All that the parts share: recipes of every GPU, rates of the GPUs, and the ids."""

    ids: Mapping[str, Sequence[str]]
    gpus: pl.DataFrame
    recipes: RecipesByClass
    stacks: pl.DataFrame
    rates: pl.DataFrame
    coefficients: pl.DataFrame

    def part(self, gpu: str) -> pl.LazyFrame:
        """One GPU's rows in the cube's columns and types, sorted by the cube's key."""
        facts = self.gpus.row(by_predicate=pl.col("gpu") == gpu, named=True)
        mine = pl.col("gpu") == gpu
        rows = serving_cube.serving(
            self.recipes.of(facts),
            facts,
            self.stacks.filter(mine).drop("gpu"),
            self.rates.filter(mine).drop("gpu"),
            self.coefficients,
        )
        return conform(rows, CUBE, self.ids)


def prepare(grid: ProjectGrid, gpus: Sequence[str], tables: Mapping[str, pl.DataFrame]) -> ServingParts:
    """Work out everything the parts share. `gpus`: those of the grid; `tables`: all of `READS`, by name."""
    lazy = {name: frame.lazy() for name, frame in tables.items()}
    on_grid = own_system(tables["gpus"].filter(pl.col("gpu").is_in(list(gpus))))
    spanned = grid_tables.published_models(lazy["models"], grid.span)
    formats = grid_tables.serving_formats(
        grid.grid, grid_tables.formats(grid.grid, lazy["frameworks"], lazy["quants"], lazy["kv_dtypes"])
    )
    support = support_tables(on_grid, spanned.collect(), tables)
    ids = cube_ids(tables)
    typed = typed_by(cube_schema(CUBE, ids))
    left = serving_cube.serving_recipes(
        typed(grid_tables.without_densities(formats)),
        typed(runnable.model_settings(formats, grid.span.n_gpus, support).lazy()),
        typed(runnable.refused_splits(formats, grid.span.n_gpus, support).lazy()),
        typed(spanned),
        typed(lazy["layers"]),
        typed(lazy["weights"]),
        typed(grid.grid.workload_rows().lazy()),
    ).collect()
    engines = lazy["frameworks"].select("framework", "engine")
    evidence = measured.evidence(
        measured.accepted_serving(grid_tables.in_text(lazy["serving_anchors"])).join(engines, on="framework"),
        lazy["gpus"],  # every GPU counts, also outside the grid
    ).collect()
    rates = calibration.gpu_coefficients(on_grid, tables["coefficients"])
    links = rates.select("gpu", "link_one_way_gb_s").unique("gpu")
    return ServingParts(
        ids=ids,
        gpus=on_grid.join(links, on="gpu", how="left"),
        recipes=RecipesByClass(left, runnable.gpu_formats(formats, support), on_grid),
        stacks=typed(
            cube.stacks(rates, evidence, tables["coefficients"], formats, "serving").lazy()
        ).collect(),
        rates=calibration.serving_rates(on_grid),
        coefficients=tables["coefficients"],
    )
