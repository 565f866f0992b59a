"""The build as one call: read the sources, run the job `build` in this process, say what came out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from pipeline.assets.release import RELEASE
from pipeline.checks import is_check
from pipeline.definitions import assemble
from pipeline.grid_resource import project_grid
from pipeline.jobs import BUILD
from pipeline.partitions import published_gpus
from pipeline.progress import Progress
from pipeline.project import Project
from pipeline.table_store import TableStore

_INTERRUPTED = "DagsterExecutionInterruptedError"
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class TableReport:
    """What became of one table."""

    table: str
    rows: int
    files: int
    n_bytes: int
    seconds: float


@dataclass(frozen=True)
class BuildReport:
    """What a build made and how long it took: the tables, their checks and the release in its folder."""

    tables: tuple[TableReport, ...]
    warnings: tuple[str, ...]
    seconds: float
    check_seconds: float = 0.0
    release_seconds: float = 0.0
    release: Path | None = None


@dataclass(frozen=True)
class Failure:
    """One step or check that failed: where, why, and the traceback for those who want it."""

    where: str
    why: str
    trace: str = ""


class BuildFailed(Exception):
    """The build stopped; nothing was released. Every failed step and check is in `failures`."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = tuple(failures)
        super().__init__("; ".join(f"{failure.where}: {failure.why}" for failure in failures))


def build_dataset(built: Project, progress: Progress) -> BuildReport:
    """Read the sources, compute every table, write the release.

    Raises SourceFaults with every fault before anything on disk has changed, or BuildFailed.
    """
    from pipeline.assets import all_assets  # here: run_build serves any set of assets
    from pipeline.contracts.sources import read_sources

    frames = read_sources(built.sources)
    gpus = published_gpus(frames["gpus"], project_grid(built).span)
    assets = all_assets(built, gpus, lambda root: frames)
    return run_build(built, gpus, assets, progress)


def run_build(
    built: Project,
    gpus: Sequence[str],
    assets: Sequence[dg.AssetsDefinition],
    progress: Progress,
) -> BuildReport:
    """Run the job `build`, the very one of the UI. Raises BuildFailed with every failed step and check.

    The run is kept in the Dagster instance of $DAGSTER_HOME when that is set, and forgotten otherwise.
    """
    began = time.monotonic()
    with _instance() as instance:
        definitions = assemble(built, gpus, assets, progress, with_pictures=not instance.is_ephemeral)
        result = definitions.resolve_job_def(BUILD).execute_in_process(
            instance=instance, run_config=_QUIET, raise_on_error=False
        )
    if not result.success:
        failures = _failures(result)
        if any(_INTERRUPTED in failure.why for failure in failures):
            raise KeyboardInterrupt  # Dagster took it for a failed step
        raise BuildFailed(failures)
    return BuildReport(
        tables=tuple(_table_reports(result, TableStore(built.stage, built.version))),
        warnings=tuple(_warnings(result)),
        seconds=time.monotonic() - began,
        check_seconds=sum(seconds for step, seconds in _step_seconds(result).items() if is_check(step)),
        release_seconds=_step_seconds(result).get(RELEASE, 0.0),
        release=_release_folder(result),
    )


@contextmanager
def _instance() -> Iterator[dg.DagsterInstance]:
    if os.environ.get("DAGSTER_HOME"):
        with dg.DagsterInstance.get() as kept:
            yield kept
    else:
        with dg.DagsterInstance.ephemeral() as forgotten:
            yield forgotten


def _failures(result: dg.ExecuteInProcessResult) -> list[Failure]:
    """Failed checks in words, then failed steps but for those that only report a failed check."""
    found = [
        Failure(
            f"check {check.check_name} of {check.asset_key.to_user_string()}", check.description or "failed"
        )
        for check in result.get_asset_check_evaluations()
        if not check.passed and check.severity == dg.AssetCheckSeverity.ERROR
    ]
    for event in result.all_events:
        if event.event_type_value == "STEP_FAILURE":
            failure = _failure(str(event.step_key), event.step_failure_data.error)
            if not (found and "DagsterAssetCheckFailedError" in failure.why):
                found.append(failure)
    if not found:  # outside a step, such as a folder that another build holds
        found = [
            _failure(BUILD, event.job_failure_data.error)
            for event in result.all_events
            if event.event_type_value == "PIPELINE_FAILURE"
        ]
    return found or [Failure(BUILD, "the run ended without success")]


def _failure(where: str, error: SerializableErrorInfo | None) -> Failure:
    if error is None:
        return Failure(where, "failed without saying why")
    cause = error
    while cause.cause is not None and str(cause.cls_name).startswith("Dagster"):
        cause = cause.cause  # what was raised in an asset, not Dagster's wrapping of it
    return Failure(where, _first_paragraph(cause.message), error.to_string())


def _first_paragraph(message: str) -> str:
    return message.strip().split("\n\n")[0]


def _step_seconds(result: dg.ExecuteInProcessResult) -> dict[str, float]:
    return {
        str(event.step_key): event.step_success_data.duration_ms / 1000
        for event in result.all_events
        if event.event_type_value == "STEP_SUCCESS"
    }


def _table_reports(result: dg.ExecuteInProcessResult, store: TableStore) -> Iterator[TableReport]:
    seconds = _step_seconds(result)
    named: dict[str, str] = {}
    for event in result.get_asset_materialization_events():
        if event.asset_key is not None and event.asset_key.path[-1] != RELEASE:
            named.setdefault(event.asset_key.path[-1], str(event.step_key))
    shared = list(named.values())
    for table, step in named.items():
        files = store.files(table)
        if files:
            n_bytes = sum(path.stat().st_size for path in files)
            # a step that makes several tables is shared out, so that the column adds up
            yield TableReport(
                table, store.rows(table), len(files), n_bytes, seconds[step] / shared.count(step)
            )


def _warnings(result: dg.ExecuteInProcessResult) -> Iterator[str]:
    for check in result.get_asset_check_evaluations():
        if not check.passed and check.severity == dg.AssetCheckSeverity.WARN:
            yield f"{check.asset_key.to_user_string()}: {check.description or check.check_name}"


def _release_folder(result: dg.ExecuteInProcessResult) -> Path | None:
    for event in result.get_asset_materialization_events():
        metadata = event.materialization.metadata
        if event.asset_key == dg.AssetKey(RELEASE) and "folder" in metadata:
            return Path(str(metadata["folder"].value))
    return None
