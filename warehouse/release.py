"""Publishes a release: built beside its place, reopened, renamed into it, then pointed to.

A released version is never changed. At any moment `releases/` holds only whole releases, and hidden leftovers
of a build that was killed, which the next build removes; `latest.json` points to one of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import polars as pl

from warehouse import manifest as manifests
from warehouse import parquet
from warehouse.atomic import PARTIAL_SUFFIX, sync_file, sync_folder, write_text
from warehouse.dataset import version_key
from warehouse.dictionary import table_names
from warehouse.duckdb_file import build_duckdb
from warehouse.reopening import release_faults
from warehouse.sqlite_file import build_sqlite

LATEST_NAME = "latest.json"
LOCK_NAME = ".lock"
_SHOWN = 20


class ReleaseError(Exception):
    """The release was not published; what was there before is untouched."""


class ReleaseExists(ReleaseError):
    """The version was released before with other content; a released version is never changed."""


class BuildLocked(ReleaseError):
    """Another process is building in the same folder."""


@dataclass(frozen=True)
class Published:
    """A release that is in place. `is_new` is False when the same version with the same content was there."""

    version: str
    folder: Path
    is_new: bool


def publish(
    stage: Path,
    releases: Path,
    version: str,
    documents: Mapping[str, str] | None = None,
    tables: Sequence[str] | None = None,
) -> Published:
    """Make `releases/<version>/` of the Parquet files in `stage`, and point `latest.json` to it.

    Parquet files are hard-linked, not copied: the stage must rewrite its files by renaming, as `write_table`
    does. `documents` are texts to add by file name (data dictionary, changes, ...); `tables` limits what is
    published, otherwise every table of the dictionary must be in the stage.

    Raises BuildLocked when another build is at work, ReleaseExists when the version has other content,
    ReleaseError when a table is missing, a file does not read back as promised, or the disk refuses. In every
    case the earlier releases and `latest.json` stay as they were.
    """
    version_key(version)
    try:
        releases.mkdir(parents=True, exist_ok=True)
        with build_lock(releases):
            remove_leftovers(releases)
            return _publish_locked(stage, releases, version, documents or {}, tables or table_names())
    except (OSError, sqlite3.Error, duckdb.Error, pl.exceptions.PolarsError) as error:
        raise ReleaseError(f"release {version} was not published: {error}") from error


def latest_version(releases: Path) -> str | None:
    """The version `latest.json` points to, or None when nothing has been released."""
    try:
        pointer = json.loads((releases / LATEST_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return str(pointer["version"])


def released_versions(releases: Path) -> list[str]:
    """All versions in `releases`, oldest first."""
    found = [path.parent.name for path in releases.glob(f"[0-9]*/{manifests.FILE_NAME}")]
    return sorted(found, key=version_key)


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Hold the folder for one build. Raises BuildLocked at once when another holds it, even in this process.

    The system lets go of the lock when the process ends, however it ends.
    """
    with (folder / LOCK_NAME).open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise BuildLocked(
                f"another build (process {holder}) is writing to {folder}; try again later"
            ) from error
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed build left in `folder`. Only while its lock is held."""
    for path in sorted(folder.glob(f".*{PARTIAL_SUFFIX}")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _publish_locked(
    stage: Path, releases: Path, version: str, documents: Mapping[str, str], tables: Sequence[str]
) -> Published:
    partial = releases / f".{version}{PARTIAL_SUFFIX}"
    target = releases / version
    try:
        partial.mkdir()
        manifest = _assemble(stage, partial, version, documents, tables)
        is_new = not target.exists()
        if is_new:
            _settle(partial)
            os.rename(partial, target)
            sync_folder(releases)
        else:
            differences = manifests.manifest_differences(manifests.read_manifest(target), manifest)
            if differences:
                raise ReleaseExists(
                    f"{version} was released with other content and is never changed; raise the version. "
                    f"{len(differences)} difference(s): {_first(differences)}"
                )
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _point_to(releases, version)
    return Published(version, target, is_new)


def _assemble(
    stage: Path, partial: Path, version: str, documents: Mapping[str, str], tables: Sequence[str]
) -> manifests.Manifest:
    missing = [name for name in tables if not parquet.table_files(stage, name)]
    if missing:
        raise ReleaseError(f"the stage {stage} lacks table(s) {', '.join(missing)}")
    for name in tables:
        for path in parquet.table_files(stage, name):
            _link(path, partial / path.relative_to(stage))
    with ThreadPoolExecutor(max_workers=2) as pool:  # both leave Python's lock most of the time
        for built in [pool.submit(build, partial, version) for build in (build_duckdb, build_sqlite)]:
            built.result()
    for name, text in sorted(documents.items()):
        if Path(name).name != name or name == manifests.FILE_NAME or (partial / name).exists():
            raise ReleaseError(f"document name {name!r} is taken or is no plain file name")
        write_text(partial / name, text)
    manifest = manifests.write_manifest(partial, version)
    faults = release_faults(partial, manifest)
    if faults:
        raise ReleaseError(f"release {version} does not read back: {_first(faults)}")
    return manifest


def _link(source: Path, target: Path) -> None:
    """Same file under a second name; a copy where the disk or the system allows no link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)


def _settle(folder: Path) -> None:
    """Write-protect every file and flush every folder, before the release gets its name."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            sync_folder(path)
        else:
            path.chmod(0o444)
    sync_folder(folder)


def _point_to(releases: Path, version: str) -> None:
    """Move `latest.json` on, never back to an older version."""
    latest = latest_version(releases)
    if latest is None or version_key(version) > version_key(latest):
        write_text(releases / LATEST_NAME, json.dumps({"version": version}) + "\n")


def _first(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more
