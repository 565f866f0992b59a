"""The tables of `sources/`: read together, because a fault in one file must stop all of them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import dagster as dg
import polars as pl

from pipeline.asset_metadata import table_description
from pipeline.assets.table_asset import definition_metadata
from pipeline.contracts.faults import SourceFaults
from warehouse.dictionary import Table

ReadSources = Callable[[Path], Mapping[str, pl.DataFrame]]

_JSON_TABLES = ("layers", "llama_cpp_layers", "models")
_TOML_TABLES = ("citations", "claims", "facts", "frameworks", "gpus", "quants")
_FAULTS_SHOWN = 50


def source_assets(tables: Mapping[str, Table], root: Path, read: ReadSources) -> dg.AssetsDefinition:
    """One step that yields all of `tables`, whatever their room; `read(root)` raises SourceFaults."""
    names = sorted(tables)

    @dg.multi_asset(
        name="read_sources",
        outs={
            name: dg.AssetOut(
                group_name=tables[name].room,
                description=table_description(tables[name]),
                kinds={_kind(name), "polars", "parquet"},
                metadata=definition_metadata(tables[name]),
            )
            for name in names
        },
    )
    def read_sources(context: dg.AssetExecutionContext) -> Iterator[dg.Output[pl.DataFrame]]:
        try:
            frames = read(root)
        except SourceFaults as error:
            _show_faults(context, error)
            raise
        missing, unknown = sorted(set(names) - set(frames)), sorted(set(frames) - set(names))
        if missing or unknown:
            raise ValueError(
                "the readers and the dictionary disagree on the source tables: "
                f"not read: {', '.join(missing) or 'none'}; "
                f"not in the dictionary: {', '.join(unknown) or 'none'}"
            )
        for name in names:
            yield dg.Output(frames[name], output_name=name)

    return read_sources


def _kind(name: str) -> str:
    if name in _JSON_TABLES:
        return "json"
    return "toml" if name in _TOML_TABLES else "csv"


def _show_faults(context: dg.AssetExecutionContext, error: SourceFaults) -> None:
    """Faults into the run's log, where a user of the UI looks (the exception alone would be cut)."""
    for fault in error.faults[:_FAULTS_SHOWN]:
        context.log.error(str(fault))
    if len(error.faults) > _FAULTS_SHOWN:
        context.log.error(f"and {len(error.faults) - _FAULTS_SHOWN} more: see `tokcube sources check`")
