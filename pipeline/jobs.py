"""The jobs: `build` does everything in one run, as `tokcube build` does; `check_sources` only reads."""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from pipeline.partitions import every_partition

BUILD = "build"
CHECK_SOURCES = "check_sources"


def build_job(partitions: dg.StaticPartitionsDefinition) -> UnresolvedAssetJobDefinition:
    """All assets and checks in one run. Its tags make the cubes fill every partition in that same run."""
    return dg.define_asset_job(
        BUILD,
        selection=dg.AssetSelection.all(),
        tags=every_partition(partitions),
        description="Everything from the sources to the release, in one run: what `tokcube build` runs.",
    )


def source_job() -> UnresolvedAssetJobDefinition:
    """Only what is read from `sources/` (it depends on nothing), and its checks."""
    return dg.define_asset_job(
        CHECK_SOURCES,
        selection=dg.AssetSelection.all().roots(),
        description="Read and validate sources/, nothing else.",
    )
