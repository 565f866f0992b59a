"""How assets hand tables to each other: staged as Parquet, loaded lazily unless a frame is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import dagster as dg
import polars as pl

from pipeline.asset_metadata import picture, table_metadata
from pipeline.plots import PLOTS
from pipeline.progress import Progress
from pipeline.table_store import TableStore
from warehouse.dictionary import table
from warehouse.release import build_lock


class TableIO(dg.IOManager):
    """Dagster's IO manager over a TableStore.

    A small table is staged and described in the run, with pictures when somebody keeps the run. A cube writes
    itself partition by partition; loading one gives the parts of all `gpus`.
    """

    def __init__(
        self, store: TableStore, gpus: Collection[str], progress: Progress, with_pictures: bool
    ) -> None:
        self._store = store
        self._gpus = tuple(gpus)
        self._progress = progress
        self._with_pictures = with_pictures

    def handle_output(self, context: dg.OutputContext, obj: pl.DataFrame | pl.LazyFrame) -> None:
        """Stage the frame an asset returned."""
        one = table(context.asset_key.path[-1])
        rows = self._store.write(one.name, obj)
        staged = self._store.scan(one.name)
        n_bytes = self._store.path(one.name).stat().st_size
        context.add_output_metadata(table_metadata(one, staged, rows, n_bytes))
        if self._with_pictures and one.name in PLOTS and rows:
            plot = PLOTS[one.name]
            context.add_output_metadata({plot.title: picture(plot.draw(staged.collect()), plot.title)})
        self._progress.wrote(one.name, rows)

    def load_input(self, context: dg.InputContext) -> pl.DataFrame | pl.LazyFrame:
        """The staged table: a LazyFrame, or a DataFrame when the asset's parameter says so."""
        one = table(context.asset_key.path[-1])
        if one.is_cube:
            return self._store.scan_partitions(one.name, self._gpus)
        staged = self._store.scan(one.name)
        return staged.collect() if context.dagster_type.typing_type is pl.DataFrame else staged


def locked_store(store: TableStore) -> dg.ResourceDefinition:
    """The store as a resource that holds its folder for the length of a run.

    Raises BuildLocked when another process builds into the same folder, from a terminal or from the UI.
    """

    def hold(_: dg.InitResourceContext) -> Iterator[TableStore]:
        store.stage.mkdir(parents=True, exist_ok=True)
        with build_lock(store.stage):
            store.remove_leftovers()
            yield store

    return dg.ResourceDefinition(hold, description="The staged tables; held by one run at a time.")


def table_io(gpus: Collection[str], progress: Progress, with_pictures: bool) -> dg.IOManagerDefinition:
    """The IO manager over the locked store."""

    def make(context: dg.InitResourceContext) -> TableIO:
        return TableIO(context.resources.tables, gpus, progress, with_pictures)

    return dg.IOManagerDefinition(resource_fn=make, required_resource_keys={"tables"})
