"""Prepares the cube `serving` once, then gives one GPU's rows at a time; as `estimate_parts` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from estimator import calibration, cube, measured, serving_cube
from pipeline import grid_tables
from pipeline.cube_inputs import cube_inputs
from pipeline.gpu_recipes import SUPPORT_READS, RecipesByClass
from pipeline.grid_resource import ProjectGrid
from warehouse.dictionary import conform

CUBE = "serving"
READS = (*SUPPORT_READS, "coefficients", "weights", "runtime", "runtime_steps", "serving_anchors")


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
    inputs = cube_inputs(CUBE, grid, gpus, tables, partial(grid_tables.serving_formats, grid.grid))
    coefficients = tables["coefficients"]
    left = serving_cube.serving_recipes(
        *inputs.recipe_inputs(),
        inputs.typed(tables["runtime"].lazy()),
        inputs.typed(grid.grid.workload_rows().lazy()),
    ).collect()
    larger = inputs.typed(tables["runtime_steps"].lazy()).collect()
    anchors = grid_tables.in_text(tables["serving_anchors"].lazy())
    evidence = inputs.evidence(measured.accepted_serving(anchors))
    stacks = cube.stacks(inputs.rates, evidence, coefficients, inputs.formats, "serving")
    links = inputs.rates.select("gpu", "link_one_way_gb_s").unique("gpu")
    return ServingParts(
        ids=inputs.ids,
        gpus=inputs.gpus.join(links, on="gpu", how="left"),
        recipes=inputs.by_class(left, partial(serving_cube.at_size, runtime_steps=larger)),
        stacks=inputs.typed(stacks.lazy()).collect(),
        rates=calibration.serving_rates(inputs.gpus),
        coefficients=coefficients,
    )
