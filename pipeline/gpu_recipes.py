"""What both cubes share: ids as Enums, GPUs with usable memory, support tables, recipes per class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import polars as pl

from estimator import runnable
from estimator.support import SupportTables, compute_capability_number

SUPPORT_READS = (
    "gpus",
    "models",
    "layers",
    "quants",
    "frameworks",
    "framework_steps",
    "kv_dtypes",
    "support_hardware",
    "support_formats",
    "support_kv_dtypes",
    "support_architectures",
    "support_parallelism",
)
_CITED = ("gpus", "models", "quants", "frameworks")
_TYPED = (
    "model", "framework", "backend", "quant", "kv_dtype", "workload", "model_citation", "quant_citation",
    "framework_citation",
)  # fmt: skip


@dataclass
class RecipesByClass:
    """Recipes of all GPUs, filtered for one GPU at a time; GPUs of one class share one filtering.

    `steps` (gpu, framework, at_least_gib: `gpu_steps.gpu_steps`) tell classes apart too, and `at_size` gives
    the filtered recipes the memory of a GPU's steps. `worked_out` is what they share besides, made of those.
    """

    recipes: pl.DataFrame
    gpu_formats: pl.DataFrame
    gpus: pl.DataFrame
    steps: pl.DataFrame
    at_size: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]
    worked_out: Callable[[pl.DataFrame], Any] = lambda _: None
    _kept: tuple[object, pl.DataFrame, Any] | None = None
    _lock: Lock = field(default_factory=Lock)
    _frameworks: pl.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self._frameworks = self.recipes.select("format", "framework").unique()

    def in_order(self, gpus: Sequence[str]) -> list[str]:
        """The GPUs with those of one class next to each other."""
        classes = runnable.gpu_classes(self.gpus, self.gpu_formats)
        sized = self.steps.sort("gpu", "framework").group_by("gpu").agg(size="at_least_gib")
        ordered = (
            classes.join(sized.with_columns(pl.col("gpu").cast(pl.String)), on="gpu", how="left")
            .with_columns(size=pl.col("size").rank("dense"))
            .sort("gpu_class", "size", "gpu")
            .get_column("gpu")
            .to_list()
        )
        place = {gpu: at for at, gpu in enumerate(ordered)}
        return sorted(gpus, key=lambda gpu: (place.get(gpu, len(place)), gpu))

    def of(self, gpu: Mapping[str, object]) -> pl.DataFrame:
        """The recipes this GPU (a row of `own_system`) can run; kept until a GPU of another class asks."""
        return self.shared(gpu)[0]

    def shared(self, gpu: Mapping[str, object]) -> tuple[pl.DataFrame, Any]:
        """The recipes of this GPU, and what is worked out of them."""
        formats = self.gpu_formats.filter(pl.col("gpu") == gpu["gpu"]).get_column("format")
        steps = self._steps_of(gpu, formats)
        key = (tuple(formats), gpu["n_gpus_max"], gpu["capability"], tuple(steps.rows()))
        with self._lock:  # parts are made two at a time
            if self._kept is None or self._kept[0] != key:
                kept = self.at_size(self._filtered(formats, gpu), steps)
                self._kept = (key, kept, self.worked_out(kept))
            return self._kept[1:]

    def _steps_of(self, gpu: Mapping[str, object], formats: pl.Series) -> pl.DataFrame:
        """The steps of the engines that this GPU runs: framework, at_least_gib."""
        run = self._frameworks.filter(pl.col("format").is_in(formats.implode()))
        mine = self.steps.filter(pl.col("gpu") == gpu["gpu"]).drop("gpu")
        return mine.join(run, on="framework", how="semi").sort("framework")

    def _filtered(self, formats: pl.Series, gpu: Mapping[str, object]) -> pl.DataFrame:
        capability = pl.lit(gpu["capability"], dtype=pl.Int16)
        knows_architecture = pl.col("arch_min").is_null() | (capability.fill_null(0) >= pl.col("arch_min"))
        return self.recipes.filter(
            pl.col("format").is_in(formats.implode()),
            pl.col("n_gpus") <= pl.lit(gpu["n_gpus_max"]),
            knows_architecture,
        )


def cube_ids(tables: Mapping[str, pl.DataFrame]) -> dict[str, list[str]]:
    """The ids that the cubes' Enum columns may hold, by reference; of citations, those that rows can name."""
    citations = pl.concat([tables[name].get_column("citation") for name in _CITED])
    return {
        "gpus.gpu": tables["gpus"].get_column("gpu").to_list(),
        "models.model": tables["models"].get_column("model").to_list(),
        "quants.quant": tables["quants"].get_column("quant").to_list(),
        "frameworks.framework": tables["frameworks"].get_column("framework").to_list(),
        "kv_dtypes.kv_dtype": tables["kv_dtypes"].get_column("kv_dtype").unique().to_list(),
        "citations.citation": citations.unique().to_list(),
    }


def own_system(gpus: pl.DataFrame) -> pl.DataFrame:
    """Adds usable_gib (on the GPU's own system: macOS on Apple, else Linux) and capability."""
    on_macos = pl.col("vendor").cast(pl.String) == "apple"
    return gpus.with_columns(
        usable_gib=pl.when(on_macos).then("usable_macos_gib").otherwise("usable_linux_gib"),
        capability=compute_capability_number(),
    )


def support_tables(
    gpus: pl.DataFrame, models: pl.DataFrame, tables: Mapping[str, pl.DataFrame]
) -> SupportTables:
    """The tables the support rules need, for the given GPUs and models only."""
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


def typed_by(schema: Mapping[str, pl.DataType]) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    """Casts ids to a cube's Enums before anything is joined: that is faster and needs less memory."""
    types = {name: schema[name] for name in _TYPED if name in schema}
    types["engine"] = schema["framework"]

    def typed(frame: pl.LazyFrame) -> pl.LazyFrame:
        present = [name for name in frame.collect_schema().names() if name in types]
        return frame.with_columns(pl.col(name).cast(types[name]) for name in present)

    return typed


def at_known_ids(measurements: pl.LazyFrame, ids: Mapping[str, Sequence[str]]) -> pl.LazyFrame:
    """Measurements whose ids the cube can hold; a cache type that no engine of ours has cannot meet a row."""
    return measurements.filter(
        pl.col("model").is_in(list(ids["models.model"])),
        pl.col("framework").is_in(list(ids["frameworks.framework"])),
        pl.col("quant").is_in(list(ids["quants.quant"])),
        pl.col("kv_dtype").is_in(list(ids["kv_dtypes.kv_dtype"])),
    )
