"""Reads `sources/grid.toml`: which combinations the cubes span. Ids are checked against the tables."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_toml, validate
from pipeline.contracts.strict import PositiveInt, Strict, Text

GRID_FILE = "grid.toml"
GridName = Literal["full", "core"]


class Span(Strict):
    """One named grid: its contexts, GPU counts and, when not everything, its GPUs and models."""

    contexts_tokens: Annotated[list[PositiveInt], Field(min_length=1)]
    n_gpus: Annotated[list[PositiveInt], Field(min_length=1)]
    gpus: list[Text]
    models: list[Text]


class Formats(Strict):
    """A cross product of frameworks, backends, quants and KV dtypes that people use together."""

    frameworks: Annotated[list[Text], Field(min_length=1)]
    backends: Annotated[list[Text], Field(min_length=1)]
    quants: Annotated[list[Text], Field(min_length=1)]
    kv_dtypes: Annotated[list[Text], Field(min_length=1)]


class Workload(Strict):
    """A served request's length: its name, prompt tokens and generated tokens."""

    workload: Text
    input_tokens: PositiveInt
    output_tokens: PositiveInt


class ServingSpan(Strict):
    """What the serving cube spans beside the formats."""

    concurrency: Annotated[list[PositiveInt], Field(min_length=1)]
    kv_dtypes: Annotated[list[Text], Field(min_length=1)]
    workloads: Annotated[list[Workload], Field(min_length=1)]


class Grid(Strict):
    """The whole of `grid.toml`."""

    extended_context_factor: PositiveInt
    full: Span
    core: Span
    formats: Annotated[list[Formats], Field(min_length=1)]
    serving: ServingSpan

    def span(self, name: GridName) -> Span:
        """The named grid's span."""
        return self.full if name == "full" else self.core

    def format_rows(self) -> pl.DataFrame:
        """The blocks laid out: framework, backend, quant, kv_dtype; one row each, no duplicates, sorted."""
        blocks = [
            pl.DataFrame({"framework": block.frameworks})
            .join(pl.DataFrame({"backend": block.backends}), how="cross")
            .join(pl.DataFrame({"quant": block.quants}), how="cross")
            .join(pl.DataFrame({"kv_dtype": block.kv_dtypes}), how="cross")
            for block in self.formats
        ]
        return pl.concat(blocks).unique().sort("framework", "backend", "quant", "kv_dtype")

    def workload_rows(self) -> pl.DataFrame:
        """Workloads crossed with concurrencies: workload, input_tokens, output_tokens, concurrency."""
        lengths = pl.DataFrame([workload.model_dump() for workload in self.serving.workloads])
        return lengths.join(pl.DataFrame({"concurrency": sorted(self.serving.concurrency)}), how="cross")


def read_grid(root: Path, log: FaultLog) -> Grid | None:
    """The validated grid, or None with faults in `log`."""
    path = root / GRID_FILE
    if not path.is_file():
        log.add(path, "", None, "file is missing")
        return None
    document = read_toml(path, log)
    return None if document is None else validate(path, Grid, document, log)


def check_grid_ids(root: Path, grid: Grid, known: dict[str, Collection[str]], log: FaultLog) -> None:
    """Every GPU, model, framework, quant and KV dtype named must exist; `known` maps kind to its ids."""
    path = root / GRID_FILE
    named = {
        "gpus": ("gpu", [*grid.full.gpus, *grid.core.gpus]),
        "models": ("model", [*grid.full.models, *grid.core.models]),
        "formats.frameworks": ("framework", [name for block in grid.formats for name in block.frameworks]),
        "formats.quants": ("quant", [name for block in grid.formats for name in block.quants]),
        "formats.kv_dtypes": ("kv_dtype", [name for block in grid.formats for name in block.kv_dtypes]),
        "serving.kv_dtypes": ("kv_dtype", grid.serving.kv_dtypes),
    }
    for field, (kind, names) in named.items():
        for name in sorted(set(names) - set(known[kind])):
            log.add(path, field, name, unknown_name(name, known[kind], kind))
