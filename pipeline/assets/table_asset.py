"""Makes an asset out of a function named like its table: everything the UI says comes from the dictionary."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg

from pipeline.asset_metadata import column_schema, table_description
from warehouse.dictionary import Table, table


def table_asset(
    kinds: Iterable[str] = ("polars", "parquet"), deps: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Decorator for a small table. The function's parameters are the tables it reads; it returns the frame.

    `deps` names tables it depends on without loading them.
    """

    def make(compute: Callable[..., Any]) -> dg.AssetsDefinition:
        one = table(compute.__name__)
        return dg.asset(
            name=one.name,
            group_name=one.room,
            description=table_description(one),
            kinds=set(kinds),
            metadata=definition_metadata(one),
            deps=list(deps),
        )(compute)

    return make


def cube_asset(
    partitions: dg.PartitionsDefinition[str], deps: Iterable[str] = ()
) -> Callable[[Callable[..., None]], dg.AssetsDefinition]:
    """Decorator for a cube: one partition per gpu, all those asked for filled by one run.

    The function stages its parts with `pipeline.partitions.fill_partitions` and returns nothing.
    """

    def make(compute: Callable[..., None]) -> dg.AssetsDefinition:
        one = table(compute.__name__)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)  # backfill_policy, in dagster 1.13
            return dg.asset(
                name=one.name,
                group_name=one.room,
                description=table_description(one),
                kinds={"polars", "parquet"},
                metadata=definition_metadata(one),
                partitions_def=partitions,
                backfill_policy=dg.BackfillPolicy.single_run(),
                deps=list(deps),
            )(compute)

    return make


def definition_metadata(one: Table) -> dict[str, Any]:
    """What is known about a table before it is computed: its columns and its key."""
    return {"dagster/column_schema": column_schema(one), "key": ", ".join(one.key)}
