"""The manifest lists every file as it is, and two manifests tell what differs."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.warehouse.small_stage import VERSION
from warehouse.manifest import build_manifest, manifest_differences, read_manifest, write_manifest


def test_manifest_describes_every_file_but_itself(stage: Path) -> None:
    (stage / "README.md").write_text("read me\n")
    manifest = write_manifest(stage, VERSION)
    files = {record["path"]: record for record in manifest["files"]}
    assert sorted(files) == [
        "README.md", "best_fit.parquet", "citations.parquet",
        "estimates/gpu=alpha-24gb/estimates.parquet", "estimates/gpu=beta-8gb/estimates.parquet",
    ]  # fmt: skip
    assert files["README.md"] == {
        "path": "README.md", "bytes": 8, "sha256": hashlib.sha256(b"read me\n").hexdigest(),
    }  # fmt: skip
    assert files["best_fit.parquet"]["rows"] == 4
    assert manifest["tables"]["estimates"] == {"files": 2, "rows": 8}
    assert read_manifest(stage) == manifest
    assert build_manifest(stage, VERSION) == manifest


def test_differences_are_named(stage: Path) -> None:
    (stage / "old.md").write_text("a")
    (stage / "same.md").write_text("a")
    (stage / "changed.md").write_text("a")
    old = build_manifest(stage, VERSION)
    assert manifest_differences(old, old) == []
    (stage / "old.md").rename(stage / "new.md")
    (stage / "changed.md").write_text("b")
    new = build_manifest(stage, "2026.12.1")
    assert manifest_differences(old, new) == [
        "version is '2026.12.0', would be '2026.12.1'",
        "changed.md differs",
        "new.md would be new",
        "old.md would be gone",
    ]


def test_duckdb_file_is_compared_by_content_and_others_by_bytes() -> None:
    def listed(**record: str) -> dict[str, object]:
        return {"files": [{"path": "x", **record}]}

    same_content = listed(sha256="1", content_sha256="a"), listed(sha256="2", content_sha256="a")
    other_content = listed(sha256="1", content_sha256="a"), listed(sha256="1", content_sha256="b")
    assert manifest_differences(*same_content) == []
    assert manifest_differences(*other_content) == ["x differs"]
    assert manifest_differences(listed(sha256="1"), listed(sha256="2")) == ["x differs"]
