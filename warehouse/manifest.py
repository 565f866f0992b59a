"""The manifest of a release: every file with its size, hash and rows, and what they are together.

It holds no time and no machine. Two builds of the same content have the same manifest but for the bytes of
the DuckDB file, which has a `content_sha256` to compare instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from warehouse import dataset, duckdb_file, parquet
from warehouse.atomic import write_text
from warehouse.dictionary import table_names

FILE_NAME = "manifest.json"
Manifest = dict[str, Any]


def build_manifest(folder: Path, version: str) -> Manifest:
    """Describe all files below `folder` but the manifest: path, bytes, sha256, rows of Parquet files."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE_NAME)
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing leaves Python's lock
        files = list(pool.map(lambda path: _file_record(folder, path), paths))
    rows = {record["path"]: record.get("rows", 0) for record in files}
    tables = {}
    for name in table_names():
        own = [path.relative_to(folder).as_posix() for path in parquet.table_files(folder, name)]
        if own:
            tables[name] = {"files": len(own), "rows": sum(rows[path] for path in own)}
    return {
        "dataset": dataset.DATASET,
        "version": version,
        "schema_version": dataset.SCHEMA_VERSION,
        "licence": dataset.LICENCE,
        "tables": tables,
        "files": files,
    }


def write_manifest(folder: Path, version: str) -> Manifest:
    """Build the manifest of `folder` and write it to `<folder>/manifest.json`."""
    manifest = build_manifest(folder, version)
    write_text(folder / FILE_NAME, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a release. Raises FileNotFoundError when the folder is no release."""
    manifest: Manifest = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    return manifest


def manifest_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two manifests, in words: one line for each file or field."""
    found = [
        f"{field} is {old.get(field)!r}, would be {new.get(field)!r}"
        for field in ("dataset", "version", "schema_version", "licence")
        if old.get(field) != new.get(field)
    ]
    old_files = {record["path"]: record for record in old["files"]}
    new_files = {record["path"]: record for record in new["files"]}
    for path in sorted(old_files.keys() | new_files.keys()):
        if path not in new_files:
            found.append(f"{path} would be gone")
        elif path not in old_files:
            found.append(f"{path} would be new")
        elif not _is_same(old_files[path], new_files[path]):
            found.append(f"{path} differs{_row_change(old_files[path], new_files[path])}")
    return found


def file_hash(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _file_record(folder: Path, path: Path) -> dict[str, Any]:
    record: dict[str, Any] = {
        "path": path.relative_to(folder).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": file_hash(path),
    }
    if path.suffix == ".parquet":
        record["rows"] = parquet.row_count(path)
    if path == folder / duckdb_file.FILE_NAME:
        record["content_sha256"] = duckdb_file.content_hash(folder)
    return record


def _is_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    field = "content_sha256" if "content_sha256" in old and "content_sha256" in new else "sha256"
    return bool(old[field] == new[field])


def _row_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if old.get("rows") == new.get("rows"):
        return ""
    return f": {old.get('rows')} rows, would be {new.get('rows')}"
