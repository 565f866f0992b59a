"""What both cubes are prepared from: GPUs of the grid, formats, support and typed recipe inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from estimator import calibration, gpu_steps, measured, runnable
from estimator.support import SupportTables
from pipeline import grid_tables
from pipeline.gpu_recipes import RecipesByClass, cube_ids, own_system, support_tables, typed_by
from pipeline.grid_resource import ProjectGrid
from warehouse.dictionary import cube_schema


class RecipeInputs(NamedTuple):
    """The leading arguments of `estimator.recipes.recipes` and `estimator.serving_cube.serving_recipes`."""

    formats: pl.LazyFrame
    settings: pl.LazyFrame
    refused: pl.LazyFrame
    models: pl.LazyFrame
    layers: pl.LazyFrame
    weights: pl.LazyFrame


@dataclass
class CubeInputs:
    """Inputs of one cube over one grid. `gpus`: `own_system` of the grid's; `formats`: see `grid_tables`."""

    ids: Mapping[str, Sequence[str]]
    typed: Callable[[pl.LazyFrame], pl.LazyFrame]
    gpus: pl.DataFrame
    models: pl.LazyFrame
    formats: pl.DataFrame
    support: SupportTables
    rates: pl.DataFrame
    n_gpus: Sequence[int]
    tables: Mapping[str, pl.DataFrame]

    def recipe_inputs(self) -> RecipeInputs:
        """What `recipes` and `serving_recipes` have in common, in the cube's types."""
        settings = runnable.model_settings(self.formats, self.n_gpus, self.support)
        refused = runnable.refused_splits(self.formats, self.n_gpus, self.support)
        return RecipeInputs(
            formats=self.typed(grid_tables.without_densities(self.formats)),
            settings=self.typed(settings.lazy()),
            refused=self.typed(refused.lazy()),
            models=self.typed(self.models),
            layers=self.typed(self.tables["layers"].lazy()),
            weights=self.typed(self.tables["weights"].lazy()),
        )

    def by_class(
        self,
        recipes: pl.DataFrame,
        at_size: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame],
        worked_out: Callable[[pl.DataFrame], Any] = lambda _: None,
    ) -> RecipesByClass:
        """The recipes with what is needed to pick those of one GPU, and to size them for it."""
        formats = runnable.gpu_formats(self.formats, self.support)
        lazy = {
            name: grid_tables.in_text(self.tables[name].lazy()) for name in ("frameworks", "framework_steps")
        }
        steps = gpu_steps.gpu_steps(self.gpus.lazy(), lazy["frameworks"], lazy["framework_steps"])
        return RecipesByClass(recipes, formats, self.gpus, self.typed(steps).collect(), at_size, worked_out)

    def sizes(self) -> pl.LazyFrame:
        """framework, at_least_gib: every step of the engines that have any."""
        return self.typed(gpu_steps.sizes(grid_tables.in_text(self.tables["framework_steps"].lazy())))

    def evidence(self, accepted: pl.LazyFrame) -> pl.DataFrame:
        """What accepted measurements (framework, gpu, ...) say of every GPU, those outside the grid too."""
        engines = self.tables["frameworks"].lazy().select("framework", "engine")
        return measured.evidence(accepted.join(engines, on="framework"), self.tables["gpus"].lazy()).collect()


def cube_inputs(
    cube: str,
    grid: ProjectGrid,
    gpus: Sequence[str],
    tables: Mapping[str, pl.DataFrame],
    kept_formats: Callable[[pl.DataFrame], pl.DataFrame] = lambda formats: formats,
) -> CubeInputs:
    """Lay out what a cube is prepared from.

    `gpus`: ids of the grid; `tables`: by name, at least `SUPPORT_READS`, coefficients and weights;
    `kept_formats`: which of the grid's formats the cube takes.
    """
    on_grid = own_system(tables["gpus"].filter(pl.col("gpu").is_in(list(gpus))))
    models = grid_tables.published_models(tables["models"].lazy(), grid.span)
    formats = grid_tables.formats(
        grid.grid, tables["frameworks"].lazy(), tables["quants"].lazy(), tables["kv_dtypes"].lazy()
    )
    ids = cube_ids(tables)
    return CubeInputs(
        ids=ids,
        typed=typed_by(cube_schema(cube, ids)),
        gpus=on_grid,
        models=models,
        formats=kept_formats(formats),
        support=support_tables(on_grid, models.collect(), tables),
        rates=calibration.gpu_coefficients(on_grid, tables["coefficients"]),
        n_gpus=grid.span.n_gpus,
        tables=tables,
    )
