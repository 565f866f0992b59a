"""Prepares the cube `limits` once, then gives one GPU's rows at a time; as `estimate_parts` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from estimator import gpu_steps, limits
from pipeline import grid_tables
from pipeline.cube_inputs import cube_inputs
from pipeline.factor_tables import kv_cache_at, kv_cache_steps_at, runtime_at
from pipeline.gpu_recipes import SUPPORT_READS, RecipesByClass
from pipeline.grid_resource import ProjectGrid
from warehouse.dictionary import conform

CUBE = "limits"
READS = (*SUPPORT_READS, "coefficients", "llama_cpp_layers", "llama_cpp_compute", "weights", "kv_cache",
         "kv_cache_steps", "runtime", "runtime_steps")  # fmt: skip


@dataclass
class LimitParts:
    """All that the parts share: recipes of every GPU, the knots of their settings, and the ids."""

    ids: Mapping[str, Sequence[str]]
    gpus: pl.DataFrame
    recipes: RecipesByClass
    knots: pl.DataFrame

    def part(self, gpu: str) -> pl.DataFrame:
        """One GPU's rows in the cube's columns and types, sorted by the cube's key."""
        facts = self.gpus.row(by_predicate=pl.col("gpu") == gpu, named=True)
        return conform(limits.limits(self.recipes.of(facts), self.knots, facts), CUBE, self.ids)


def prepare(grid: ProjectGrid, gpus: Sequence[str], tables: Mapping[str, pl.DataFrame]) -> LimitParts:
    """Work out everything the parts share. `gpus`: those of the grid; `tables`: all of `READS`, by name."""
    inputs = cube_inputs(CUBE, grid, gpus, tables)
    lazy = {name: frame.lazy() for name, frame in tables.items()}
    sizes = inputs.sizes()
    at_knots = _at_knots(grid, lazy)
    found = limits.limit_recipes(
        *inputs.recipe_inputs(),
        gpu_steps.at_every_size(
            inputs.typed(at_knots(kv_cache_at, "kv_cache")),
            inputs.typed(at_knots(kv_cache_steps_at, "kv_cache_steps")),
            gpu_steps.CACHE_KEY,
            "reserved_bytes",
            sizes,
        ),
        gpu_steps.at_every_size(
            inputs.typed(at_knots(runtime_at, "runtime")),
            inputs.typed(lazy["runtime_steps"]),
            gpu_steps.RUNTIME_KEY,
            "runtime_bytes",
            sizes,
        ),
        inputs.typed(limits.context_steps(lazy["frameworks"])),
        sizes,
        min(grid.span.contexts_tokens),
        grid.grid.extended_context_factor,
    )
    return LimitParts(inputs.ids, inputs.gpus, inputs.by_class(found.recipes, limits.at_size), found.knots)


def _at_knots(
    grid: ProjectGrid, tables: Mapping[str, pl.LazyFrame]
) -> Callable[[Callable[..., pl.LazyFrame], str], pl.LazyFrame]:
    """Completes a factor table with the contexts where its bytes may bend; models with windows have more."""
    models = grid_tables.published_models(tables["models"], grid.span)
    windows = tables["layers"].filter(pl.col("window_tokens").is_not_null()).select("model")
    plain, windowed, in_flight = limits.knot_contexts(
        tables["layers"].join(models.select("model"), on="model", how="semi"),
        tables["frameworks"],
        tables["framework_steps"],
    )
    on_grid = grid_tables.contexts(grid.span)
    some = models.join(windows, on="model", how="semi")
    flying = tables["frameworks"].filter(pl.col("cache_batches_in_flight").is_not_null())
    parts = [
        (plain, models.join(windows, on="model", how="anti"), tables),
        (windowed, some, tables),
        (in_flight, some, {**tables, "frameworks": flying}),
    ]

    def completed(factor: Callable[..., pl.LazyFrame], name: str) -> pl.LazyFrame:
        more = [
            factor(contexts.join(on_grid, on="context_tokens", how="anti").lazy(), mine, grid, of_engines)
            for contexts, mine, of_engines in parts
        ]
        return pl.concat([grid_tables.in_text(one) for one in (tables[name], *more)])

    return completed
