"""Prepares the cube `estimates` once, then gives one GPU's rows at a time, ready to be streamed to a file.

Which recipe runs where, typed ids and the order of GPUs are decided here; physics is in `estimator.cube`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from estimator import alternatives, cube, gpu_steps, measured
from estimator.recipes import recipes
from pipeline import grid_tables
from pipeline.cube_inputs import cube_inputs
from pipeline.gpu_recipes import SUPPORT_READS, RecipesByClass, at_known_ids
from pipeline.grid_resource import ProjectGrid
from warehouse.dictionary import conform

CUBE = "estimates"
MEMORY_TABLES = ("kv_cache", "kv_cache_steps", "runtime", "runtime_steps")
READS = (*SUPPORT_READS, "coefficients", "weights", *MEMORY_TABLES, "anchors")


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
        recipes, candidates = self.recipes.shared(facts)
        rows = cube.estimates(
            recipes,
            facts,
            self.stacks.filter(mine).drop("gpu"),
            self.measured_start.filter(mine).drop("gpu"),
            self.measured_full.filter(mine).drop("gpu"),
            candidates,
        )
        return conform(rows, CUBE, self.ids)


def prepare(grid: ProjectGrid, gpus: Sequence[str], tables: Mapping[str, pl.DataFrame]) -> EstimateParts:
    """Work out everything the parts share. `gpus`: those of the grid; `tables`: all of `READS`, by name."""
    inputs = cube_inputs(CUBE, grid, gpus, tables)
    coefficients = tables["coefficients"]
    left = recipes(
        *inputs.recipe_inputs(),
        inputs.typed(tables["kv_cache"].lazy()),
        inputs.typed(tables["runtime"].lazy()),
        coefficients,
        grid.grid.extended_context_factor,
    ).collect()
    kv_cache, kv_cache_steps, runtime, runtime_steps = (
        inputs.typed(tables[name].lazy()) for name in MEMORY_TABLES
    )
    sized = gpu_steps.sized_memory(kv_cache, kv_cache_steps, runtime, runtime_steps, inputs.sizes())
    anchors = grid_tables.in_text(tables["anchors"].lazy())
    evidence = inputs.evidence(measured.accepted_decode(anchors))
    stacks = cube.stacks(inputs.rates, evidence, coefficients, inputs.formats)
    full = measured.measured_full(anchors, grid_tables.contexts(grid.span).lazy())
    return EstimateParts(
        ids=inputs.ids,
        gpus=inputs.gpus,
        recipes=inputs.by_class(sized.placed(left), sized.at_size, alternatives.candidates),
        stacks=inputs.typed(stacks.lazy()).collect(),
        measured_start=inputs.typed(at_known_ids(measured.measured_start(anchors), inputs.ids)).collect(),
        measured_full=inputs.typed(at_known_ids(full, inputs.ids)).collect(),
    )
