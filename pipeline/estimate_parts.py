"""Prepares the cube `estimates` once, then gives one GPU's rows at a time, ready to be streamed to a file.

Which recipe runs where, typed ids and the order of GPUs are decided here; physics is in `estimator.cube`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from estimator import calibration, cube, measured, runnable
from estimator.recipes import recipes
from estimator.support import SupportTables, compute_capability_number
from pipeline import grid_tables
from pipeline.grid_resource import ProjectGrid
from warehouse.dictionary import conform, cube_schema

CUBE = "estimates"
READS = (
    "gpus",
    "models",
    "layers",
    "quants",
    "frameworks",
    "kv_dtypes",
    "coefficients",
    "support_hardware",
    "support_formats",
    "support_kv_dtypes",
    "support_architectures",
    "support_parallelism",
    "weights",
    "kv_cache",
    "runtime",
    "anchors",
)
_ID_COLUMNS = ("model", "framework", "backend", "quant", "kv_dtype")
_CITATION_COLUMNS = ("model_citation", "quant_citation", "framework_citation")
_CITED = ("gpus", "models", "quants", "frameworks")


@dataclass
class EstimateParts:
    """All that the parts share: recipes of every GPU, rates of the GPUs, measurements, and the ids."""

    ids: Mapping[str, Sequence[str]]
    gpus: pl.DataFrame
    gpu_formats: pl.DataFrame
    recipes: pl.DataFrame
    stacks: pl.DataFrame
    measured_start: pl.DataFrame
    measured_full: pl.DataFrame
    _class: tuple[object, pl.DataFrame] | None = None

    def in_order(self, gpus: Sequence[str]) -> list[str]:
        """The GPUs with those of one class, which run the same recipes, next to each other."""
        classes = runnable.gpu_classes(self.gpus, self.gpu_formats)
        ordered = classes.sort("gpu_class", "gpu").get_column("gpu").to_list()
        place = {gpu: at for at, gpu in enumerate(ordered)}
        return sorted(gpus, key=lambda gpu: (place.get(gpu, len(place)), gpu))

    def part(self, gpu: str) -> pl.LazyFrame:
        """One GPU's rows in the cube's columns and types, sorted by the cube's key."""
        facts = self.gpus.row(by_predicate=pl.col("gpu") == gpu, named=True)
        mine = pl.col("gpu") == gpu
        start, full = self.measured_start.filter(mine), self.measured_full.filter(mine)
        has_measured = bool(start.height or full.height)
        rows = cube.estimates(
            self._recipes_of(facts).lazy(),
            facts,
            self.stacks.lazy().filter(mine).drop("gpu"),
            start.lazy().drop("gpu") if has_measured else None,
            full.lazy().drop("gpu") if has_measured else None,
        )
        return conform(rows, CUBE, self.ids)

    def _recipes_of(self, facts: Mapping[str, object]) -> pl.DataFrame:
        """The recipes this GPU can run; kept until a GPU of another class asks."""
        formats = self.gpu_formats.filter(pl.col("gpu") == facts["gpu"]).get_column("format")
        key = (tuple(formats), facts["n_gpus_max"], facts["capability"])
        if self._class is None or self._class[0] != key:
            self._class = (key, self._filtered(formats, facts))
        return self._class[1]

    def _filtered(self, formats: pl.Series, facts: Mapping[str, object]) -> pl.DataFrame:
        capability = pl.lit(facts["capability"], dtype=pl.Int16)
        knows_architecture = pl.col("arch_min").is_null() | (capability.fill_null(0) >= pl.col("arch_min"))
        return self.recipes.filter(
            pl.col("format").is_in(formats.implode()),
            pl.col("n_gpus") <= pl.lit(facts["n_gpus_max"]),
            knows_architecture,
        )


def prepare(grid: ProjectGrid, gpus: Sequence[str], tables: Mapping[str, pl.DataFrame]) -> EstimateParts:
    """Work out everything the parts share. `gpus`: those of the grid; `tables`: all of `READS`, by name."""
    lazy = {name: frame.lazy() for name, frame in tables.items()}
    anchors = lazy["anchors"].with_columns(pl.col("backend").cast(pl.String))  # as rates and formats have it
    on_grid = _own_system(tables["gpus"].filter(pl.col("gpu").is_in(list(gpus))))
    spanned = grid_tables.published_models(lazy["models"], grid.span)
    formats = grid_tables.formats(grid.grid, lazy["frameworks"], lazy["quants"], lazy["kv_dtypes"])
    support = _support(on_grid, spanned.collect(), tables)
    ids = cube_ids(tables)
    typed = _typed_by(cube_schema(CUBE, ids))
    left = recipes(
        typed(formats.lazy().drop("body_bpw", "embedding_bpw", "head_bpw", "scope", "quant_citation")),
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
    evidence = measured.evidence(anchors.join(engines, on="framework"), on_grid.lazy()).collect()
    rates = calibration.gpu_coefficients(on_grid, tables["coefficients"])
    return EstimateParts(
        ids=ids,
        gpus=on_grid,
        gpu_formats=runnable.gpu_formats(formats, support),
        recipes=left,
        stacks=typed(cube.stacks(rates, evidence, tables["coefficients"], formats).lazy()).collect(),
        measured_start=typed(_at_known_ids(measured.measured_start(anchors), ids)).collect(),
        measured_full=typed(
            _at_known_ids(measured.measured_full(anchors, grid_tables.contexts(grid.span).lazy()), ids)
        ).collect(),
    )


def cube_ids(tables: Mapping[str, pl.DataFrame]) -> dict[str, list[str]]:
    """The ids that the cube's Enum columns may hold, by reference; of citations, those that rows can name."""
    citations = pl.concat([tables[name].get_column("citation") for name in _CITED])
    return {
        "gpus.gpu": tables["gpus"].get_column("gpu").to_list(),
        "models.model": tables["models"].get_column("model").to_list(),
        "quants.quant": tables["quants"].get_column("quant").to_list(),
        "frameworks.framework": tables["frameworks"].get_column("framework").to_list(),
        "kv_dtypes.kv_dtype": tables["kv_dtypes"].get_column("kv_dtype").unique().to_list(),
        "citations.citation": citations.unique().to_list(),
    }


def _own_system(gpus: pl.DataFrame) -> pl.DataFrame:
    """Adds usable_gib (on the GPU's own system: macOS on Apple, else Linux) and capability."""
    on_macos = pl.col("vendor").cast(pl.String) == "apple"
    return gpus.with_columns(
        usable_gib=pl.when(on_macos).then("usable_macos_gib").otherwise("usable_linux_gib"),
        capability=compute_capability_number(),
    )


def _support(gpus: pl.DataFrame, models: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> SupportTables:
    return SupportTables(
        gpus=gpus,
        models=models,
        layers=tables["layers"],
        quants=tables["quants"],
        frameworks=tables["frameworks"],
        kv_dtypes=tables["kv_dtypes"],
        hardware_rules=tables["support_hardware"],
        format_rules=tables["support_formats"],
        kv_dtype_rules=tables["support_kv_dtypes"],
        architecture_rules=tables["support_architectures"],
        parallelism_rules=tables["support_parallelism"],
    )


def _typed_by(schema: Mapping[str, pl.DataType]) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    """Casts ids to the cube's Enums before anything is joined: that is faster and needs less memory."""
    types = {name: schema[name] for name in (*_ID_COLUMNS, *_CITATION_COLUMNS)}
    types["engine"] = schema["framework"]

    def typed(frame: pl.LazyFrame) -> pl.LazyFrame:
        present = [name for name in frame.collect_schema().names() if name in types]
        return frame.with_columns(pl.col(name).cast(types[name]) for name in present)

    return typed


def _at_known_ids(measurements: pl.LazyFrame, ids: Mapping[str, Sequence[str]]) -> pl.LazyFrame:
    """Measurements whose ids the cube can hold; a cache type that no engine of ours has cannot meet a row."""
    return measurements.filter(
        pl.col("model").is_in(list(ids["models.model"])),
        pl.col("framework").is_in(list(ids["frameworks.framework"])),
        pl.col("quant").is_in(list(ids["quants.quant"])),
        pl.col("kv_dtype").is_in(list(ids["kv_dtypes.kv_dtype"])),
    )
