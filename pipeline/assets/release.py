"""The release: everything staged, linked into one immutable folder with DuckDB, SQLite and a manifest."""

from collections.abc import Sequence

import dagster as dg

from pipeline.project import Project
from pipeline.table_store import TableStore
from warehouse.release import publish

RELEASE = "release"


def release_asset(names: Sequence[str]) -> dg.AssetsDefinition:
    """The asset that publishes all of the tables `names`, once every one of them has passed its checks."""

    @dg.asset(
        name=RELEASE,
        group_name="release",
        description="Immutable folder `releases/<version>/`: Parquet, DuckDB, SQLite and a manifest with the "
        "hash of every file, reopened before it got its name. A released version is never changed.",
        kinds={"parquet", "duckdb", "sqlite"},
        deps=list(names),
    )
    def release(
        tables: dg.ResourceParam[TableStore], project: dg.ResourceParam[Project]
    ) -> dg.MaterializeResult[None]:
        published = publish(tables.stage, project.releases, project.version)
        files = [path for path in published.folder.rglob("*") if path.is_file()]
        return dg.MaterializeResult(
            metadata={
                "folder": dg.MetadataValue.path(str(published.folder)),
                "version": published.version,
                "is_new": published.is_new,
                "files": len(files),
                "size_bytes": sum(path.stat().st_size for path in files),
            }
        )

    return release
