"""What a GPU's own memory changes: engines compute more prompt tokens at a time on larger GPUs
(`framework_steps`), which takes more runtime memory and more positions of windows.

Tables hold the smallest GPUs' figures; `runtime_steps` and `kv_cache_steps` what larger ones take beside
them. Here a GPU finds its step of each engine, and tables or recipes get the figures of a step. Pure polars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from estimator.capacity import gib, total_gib
from estimator.engine_runtime import steps_by_memory

SIZE = pl.Int16
SETTING = ("model", "framework", "backend", "kv_dtype", "n_gpus", "context_tokens")
CACHE_KEY = ("model", "framework", "kv_dtype", "context_tokens", "n_gpus")
RUNTIME_KEY = ("model", "framework", "n_gpus")
MEMORY = ("kv_cache_gib", "runtime_gib", "total_gib")
_ROW = "sized_row"


def sizes(steps: pl.LazyFrame) -> pl.LazyFrame:
    """framework, at_least_gib (0 among them): every step of the engines that have any.

    `steps`: the table framework_steps.
    """
    return steps_by_memory(steps).select("framework", pl.col("at_least_gib").cast(SIZE))


def gpu_steps(gpus: pl.LazyFrame, frameworks: pl.LazyFrame, steps: pl.LazyFrame) -> pl.LazyFrame:
    """gpu, framework, at_least_gib: the step that each GPU reaches, for engines with more than one.

    `gpus`: gpu, memory_gib; `frameworks`: framework, profile_smallest_step_names (parts of device names, by
    ";", that an engine leaves at its smallest step whatever their memory; ids of gpus hold the names).
    """
    names = frameworks.select(
        "framework", part=pl.col("profile_smallest_step_names").cast(pl.String).str.split(";")
    ).explode("part").drop_nulls()  # fmt: skip
    kept_small = (
        names.join(gpus.select("gpu"), how="cross")
        .filter(pl.col("gpu").cast(pl.String).str.contains(pl.col("part"), literal=True))
        .select("framework", "gpu", kept_small=pl.lit(True))
        .unique()
    )
    reached = (pl.col("at_least_gib") <= pl.col("memory_gib")) & pl.col("kept_small").is_null()
    return (
        sizes(steps)
        .join(gpus.select("gpu", "memory_gib"), how="cross")
        .join(kept_small, on=["framework", "gpu"], how="left")
        .group_by("gpu", "framework")
        .agg(at_least_gib=pl.col("at_least_gib").filter(reached).max().fill_null(0).cast(SIZE))
        .sort("gpu", "framework")
    )


def at_every_size(
    table: pl.LazyFrame, extra: pl.LazyFrame, key: Sequence[str], value: str, sized: pl.LazyFrame
) -> pl.LazyFrame:
    """The table once per step of its engine: adds at_least_gib, and extra_bytes to the column `value`.

    `table` and `extra` (at_least_gib, extra_bytes) share `key`; `sized`: `sizes`. Engines without steps have
    their rows at 0 alone.
    """
    more = extra.select(*key, pl.col("at_least_gib").cast(SIZE), "extra_bytes")
    return (
        table.join(sized, on="framework", how="left")
        .with_columns(pl.col("at_least_gib").fill_null(0))
        .join(more, on=[*key, "at_least_gib"], how="left")
        .with_columns(pl.col(value) + pl.col("extra_bytes").fill_null(0))
        .drop("extra_bytes")
    )


@dataclass(frozen=True)
class SizedMemory:
    """`settings`: `SETTING` and their row; `memory`: that row, framework, at_least_gib, kv_cache_gib and
    runtime_gib, for every step above the smallest.
    """

    settings: pl.DataFrame
    memory: pl.DataFrame

    def placed(self, recipes: pl.DataFrame) -> pl.DataFrame:
        """The recipes with the row of their setting, null where no step changes anything."""
        return recipes.join(self.settings, on=list(SETTING), how="left", maintain_order="left")

    def at_size(self, placed: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
        """The recipes with `MEMORY` of one GPU's steps (framework, at_least_gib). Row order is kept.

        Gathered by row: a join would have to keep the order of millions of rows for every class of GPUs.
        """
        chosen = self.memory.join(steps, on=["framework", "at_least_gib"])
        if chosen.is_empty():
            return placed.drop(_ROW)
        laid_out = self.settings.select(_ROW).join(chosen, on=_ROW, how="left", maintain_order="left")
        rows = placed.get_column(_ROW)
        own = [laid_out.get_column(name).gather(rows).alias(f"sized_{name}") for name in MEMORY[:2]]
        parts = [pl.coalesce(f"sized_{name}", name).alias(name) for name in MEMORY[:2]]
        known = placed.with_columns(own).with_columns(parts)
        in_double = [pl.col(name).cast(pl.Float64) for name in ("weights_gib", *MEMORY[:2])]
        total = known.select(in_double).select(total_gib().cast(pl.Float32).alias("total_gib"))
        return known.with_columns(total.to_series()).drop(_ROW, *(f"sized_{name}" for name in MEMORY[:2]))


def sized_memory(
    kv_cache: pl.LazyFrame,
    kv_cache_steps: pl.LazyFrame,
    runtime: pl.LazyFrame,
    runtime_steps: pl.LazyFrame,
    steps: pl.LazyFrame,
) -> SizedMemory:
    """What `estimates` publishes of cache and runtime at every step above the smallest.

    The arguments are the tables of those names, `steps`: `sizes`.
    """
    stepped = steps.select("framework").unique()
    caches = at_every_size(
        kv_cache.join(stepped, on="framework", how="semi"), kv_cache_steps, CACHE_KEY, "reserved_bytes", steps
    )
    rest = at_every_size(
        runtime.join(stepped, on="framework", how="semi"), runtime_steps, RUNTIME_KEY, "runtime_bytes", steps
    )
    rows = (
        caches.join(rest, on=["model", "framework", "context_tokens", "n_gpus", "at_least_gib"])
        .filter(pl.col("at_least_gib") > 0)
        .select(
            *SETTING,
            "at_least_gib",
            kv_cache_gib=gib("reserved_bytes").cast(pl.Float32),
            runtime_gib=gib("runtime_bytes").cast(pl.Float32),
        )
        .collect()
    )
    settings = rows.select(SETTING).unique().sort(SETTING).with_row_index(_ROW)
    memory = rows.join(settings, on=list(SETTING)).select(
        _ROW, "framework", "at_least_gib", "kv_cache_gib", "runtime_gib"
    )
    return SizedMemory(settings, memory)
