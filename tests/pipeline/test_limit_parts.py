"""The cube's limits and its estimates say the same, over the small sources and the core grid."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline import estimate_parts, grid_tables, limit_parts
from pipeline.contracts.sources import read_sources
from pipeline.factor_tables import (
    kv_cache_at,
    kv_cache_steps_at,
    runtime_at,
    runtime_steps_at,
    weights_of,
)
from pipeline.grid_resource import ProjectGrid, project_grid
from pipeline.partitions import published_gpus
from pipeline.project import project
from warehouse.dictionary import conform

SMALL = Path(__file__).parents[1] / "small_sources"
RECIPE = ["gpu", "model", "framework", "backend", "quant", "kv_dtype", "n_gpus"]


@pytest.fixture(scope="module")
def grid() -> ProjectGrid:
    return project_grid(project(sources=SMALL, grid="core", version="2026.1.0"))


@pytest.fixture(scope="module")
def tables(grid: ProjectGrid) -> dict[str, pl.DataFrame]:
    """The source tables, and the factors over the grid."""
    known = read_sources(SMALL)
    lazy = {name: frame.lazy() for name, frame in known.items()}
    models = grid_tables.published_models(lazy["models"], grid.span)
    on_grid = grid_tables.contexts(grid.span).lazy()
    numbered = grid_tables.formats(grid.grid, lazy["frameworks"], lazy["quants"], lazy["kv_dtypes"])
    counts = grid_tables.gpu_counts(grid.span).lazy()
    made = {
        "weights": weights_of(numbered, counts, models, lazy),
        "kv_cache": kv_cache_at(on_grid, models, grid, lazy),
        "kv_cache_steps": kv_cache_steps_at(on_grid, models, grid, lazy),
        "runtime": runtime_at(on_grid, models, grid, lazy),
        "runtime_steps": runtime_steps_at(models, grid, lazy),
    }
    return known | {name: conform(frame, name).collect() for name, frame in made.items()}


@pytest.fixture(scope="module")
def both(grid: ProjectGrid, tables: dict[str, pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """estimates and limits of every gpu."""
    gpus = published_gpus(tables["gpus"], grid.span)
    estimates = estimate_parts.prepare(grid, gpus, tables)
    limits = limit_parts.prepare(grid, gpus, tables)
    return (
        pl.concat([estimates.part(gpu).collect() for gpu in gpus]),
        pl.concat([limits.part(gpu) for gpu in gpus]),
    )


def test_a_context_does_not_fit_exactly_where_it_is_above_the_longest(
    both: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    estimates, limits = both
    rows = estimates.join(limits, on=RECIPE, how="left")
    assert rows.height > 1000
    no_fit = pl.col("verdict") == "no_fit"
    above = pl.col("context_tokens") > pl.col("longest_context_tokens").fill_null(0)
    assert rows.filter(no_fit != above).is_empty()
    assert 0 < rows.select(no_fit.sum()).item() < rows.height


def test_limits_has_a_row_for_every_recipe_of_the_cube_in_order(
    both: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    estimates, limits = both
    assert limits.select(RECIPE).equals(estimates.select(RECIPE).unique(maintain_order=True))


@pytest.mark.parametrize("changed", ["kv_dtype", "quant", "n_gpus"])
def test_the_change_that_makes_a_row_fit_is_a_row_that_fits(
    both: tuple[pl.DataFrame, pl.DataFrame], changed: str
) -> None:
    estimates, _ = both
    key = [*RECIPE, "context_tokens"]
    wanted = estimates.filter(pl.col(f"fits_with_{changed}").is_not_null()).select(
        *[name for name in key if name != changed], pl.col(f"fits_with_{changed}").alias(changed)
    )
    found = wanted.join(estimates.select(*key, "verdict"), on=key)
    assert found.height == wanted.height > 0
    assert found.filter(pl.col("verdict") == "no_fit").is_empty()


def test_what_does_not_fit_says_what_would_and_nothing_else_does(
    both: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    estimates, _ = both
    no_fit = pl.col("verdict") == "no_fit"
    assert estimates.filter(no_fit != pl.col("fits_with").is_not_null()).is_empty()
    named = [
        pl.when(pl.col(f"fits_with_{name}").is_not_null()).then(pl.lit(name))
        for name in ("kv_dtype", "quant", "n_gpus")
    ]
    chosen = pl.coalesce(*named, pl.lit("nothing"))
    assert estimates.filter(no_fit, pl.col("fits_with").cast(pl.String) != chosen).is_empty()
