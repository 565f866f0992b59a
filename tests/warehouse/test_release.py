"""Releases appear whole, never change, and survive what happens to builds: kills, rivals, full disks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warehouse.small_stage import GPUS, VERSION, best_fit, estimates, write_stage
from warehouse import manifest, parquet, reopening
from warehouse.release import (
    BuildLocked,
    ReleaseError,
    ReleaseExists,
    build_lock,
    latest_version,
    publish,
    released_versions,
)

ROOT = Path(__file__).parents[2]
TABLES = ("best_fit", "citations", "estimates")
NEXT = "2026.12.1"


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    return tmp_path / "releases"


def content(folder: Path) -> dict[str, bytes]:
    """Every file below the folder but the lock, which says who built last."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_release_holds_everything_and_is_pointed_to(stage: Path, releases: Path) -> None:
    published = publish(stage, releases, VERSION, {"README.md": "Hello\n"}, TABLES)
    assert published.is_new
    assert published.folder == releases / VERSION
    assert set(content(published.folder)) == {
        "README.md", "manifest.json", "tokcube.duckdb", "tokcube.sqlite",
        "best_fit.parquet", "citations.parquet", *(f"estimates/gpu={gpu}/estimates.parquet" for gpu in GPUS),
    }  # fmt: skip
    assert json.loads((releases / "latest.json").read_text()) == {"version": VERSION}
    assert latest_version(releases) == VERSION
    assert not list(releases.glob(".*.partial"))


def test_parquet_files_are_linked_not_copied_and_a_new_stage_leaves_them_alone(
    stage: Path, releases: Path
) -> None:
    folder = publish(stage, releases, VERSION, tables=TABLES).folder
    part = parquet.cube_path(stage, "estimates", GPUS[0])
    assert part.samefile(parquet.cube_path(folder, "estimates", GPUS[0]))
    before = content(folder)
    write_stage(stage, NEXT)
    assert content(folder) == before
    publish(stage, releases, NEXT, tables=TABLES)
    assert content(folder) == before
    assert released_versions(releases) == [VERSION, NEXT]


def test_same_content_again_is_nothing_to_do(stage: Path, releases: Path) -> None:
    publish(stage, releases, VERSION, {"README.md": "Hello\n"}, TABLES)
    before = content(releases)
    write_stage(stage)  # written anew, same bytes
    assert not publish(stage, releases, VERSION, {"README.md": "Hello\n"}, TABLES).is_new
    assert content(releases) == before


def test_other_content_under_a_released_version_is_refused(stage: Path, releases: Path) -> None:
    publish(stage, releases, VERSION, tables=TABLES)
    before = content(releases)
    parquet.write_table(best_fit().head(3), "best_fit", stage, VERSION)
    with pytest.raises(ReleaseExists, match=r"best_fit\.parquet differs: 4 rows, would be 3"):
        publish(stage, releases, VERSION, tables=TABLES)
    assert content(releases) == before


def test_pointer_lost_between_rename_and_pointing_is_set_again(stage: Path, releases: Path) -> None:
    publish(stage, releases, VERSION, tables=TABLES)
    (releases / "latest.json").unlink()
    assert latest_version(releases) is None
    assert not publish(stage, releases, VERSION, tables=TABLES).is_new
    assert latest_version(releases) == VERSION


def test_pointer_never_moves_back(stage: Path, releases: Path) -> None:
    write_stage(stage, "2026.12.10")
    publish(stage, releases, "2026.12.10", tables=TABLES)
    write_stage(stage, "2026.12.9")
    publish(stage, releases, "2026.12.9", tables=TABLES)
    assert latest_version(releases) == "2026.12.10"
    assert released_versions(releases) == ["2026.12.9", "2026.12.10"]


@pytest.mark.parametrize("version", ["2026.13.0", "2026.1", "v2026.1.0", "../2026.1.0", "2026.01.0"])
def test_version_of_another_form_is_refused(stage: Path, releases: Path, version: str) -> None:
    with pytest.raises(ValueError, match=r"must be written YYYY\.M\.N"):
        publish(stage, releases, version, tables=TABLES)
    assert not releases.exists()


def lacks_a_table(stage: Path) -> None:
    (stage / "citations.parquet").unlink()


def has_a_broken_file(stage: Path) -> None:
    (stage / "citations.parquet").write_bytes(b"PAR1")


def has_a_cut_part(stage: Path) -> None:
    path = parquet.cube_path(stage, "estimates", GPUS[0])
    path.write_bytes(path.read_bytes()[:-100])


def was_written_for_another_version(stage: Path) -> None:
    parquet.write_table(best_fit(), "best_fit", stage, NEXT)


def has_a_part_of_another_gpu(stage: Path) -> None:
    parquet.write_cube_part(estimates(GPUS[1]), "estimates", GPUS[0], stage, VERSION)


def has_a_part_without_a_column(stage: Path) -> None:
    path = parquet.cube_path(stage, "estimates", GPUS[0])
    part = estimates(GPUS[0]).lazy().drop("n_anchors")
    parquet.write_parquet(part, path, parquet.file_metadata("estimates", VERSION), 3)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lacks_a_table, r"lacks table\(s\) citations"),
        (has_a_broken_file, "was not published: .*citations"),
        (has_a_cut_part, "was not published: .*gpu=alpha-24gb"),
        (was_written_for_another_version, r"best_fit\.parquet: was written as version 2026\.12\.1"),
        (has_a_part_of_another_gpu, "gpu=alpha-24gb/estimates.parquet: holds rows of beta-8gb"),
        (has_a_part_without_a_column, "n_anchors"),
    ],
)
def test_faulty_stage_is_not_published(
    stage: Path, releases: Path, fault: Callable[[Path], None], words: str
) -> None:
    publish(write_stage(stage, "2026.11.0"), releases, "2026.11.0", tables=TABLES)
    before = content(releases)
    write_stage(stage)
    fault(stage)
    with pytest.raises(ReleaseError, match=words):
        publish(stage, releases, VERSION, tables=TABLES)
    assert content(releases) == before


def test_whole_dictionary_is_asked_for_by_default(stage: Path, releases: Path) -> None:
    with pytest.raises(ReleaseError, match=r"lacks table\(s\) .*serving"):
        publish(stage, releases, VERSION)


@pytest.mark.parametrize("name", ["../outside.md", "best_fit.parquet", "manifest.json", "tokcube.duckdb"])
def test_document_cannot_replace_or_escape(stage: Path, releases: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="document name"):
        publish(stage, releases, VERSION, {name: "x"}, TABLES)
    assert content(releases) == {}


def test_reopening_finds_what_the_manifest_does_not_promise(stage: Path, releases: Path) -> None:
    folder = publish(stage, releases, VERSION, tables=TABLES).folder
    promised = manifest.read_manifest(folder)
    assert reopening.release_faults(folder, promised) == []
    promised["tables"]["best_fit"]["rows"] = 5
    assert reopening.release_faults(folder, promised) == [
        "tokcube.duckdb: best_fit has 4 rows, should have 5",
        "tokcube.sqlite: best_fit has 4 rows, should have 5",
    ]
    for name in ("tokcube.duckdb", "tokcube.sqlite"):
        path = folder / name
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:2048] + b"\xff" * 4096 + path.read_bytes()[6144:])
    found = " ".join(reopening.release_faults(folder, promised))
    assert "tokcube.duckdb: DuckDB cannot read it" in found
    assert "tokcube.sqlite: " in found


def test_second_build_is_refused_while_the_first_holds_the_lock(stage: Path, releases: Path) -> None:
    releases.mkdir()
    with (
        build_lock(releases),
        pytest.raises(BuildLocked, match=f"another build .process {os.getpid()}. is writing"),
    ):
        publish(stage, releases, VERSION, tables=TABLES)
    assert content(releases) == {}
    assert publish(stage, releases, VERSION, tables=TABLES).is_new


# Publishes in a process of its own and waits inside the named step until it is killed.
STOPPED_BUILD = """
import sys, time
from pathlib import Path
from warehouse import manifest, release
module, name = {"manifest": (manifest, "write_manifest"), "pointer": (release, "_point_to"),
                "sqlite": (release, "build_sqlite")}[sys.argv[3]]
def stop(*arguments):
    print("stopped", flush=True)
    time.sleep(60)
setattr(module, name, stop)
release.publish(Path(sys.argv[1]), Path(sys.argv[2]), "2026.12.1", tables=sys.argv[4:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["sqlite", "manifest", "pointer"])
def test_killed_build_leaves_the_last_release_and_the_next_one_succeeds(
    stage: Path, releases: Path, step: str
) -> None:
    publish(stage, releases, VERSION, tables=TABLES)
    before = content(releases)
    write_stage(stage, NEXT)
    command = [sys.executable, "-c", STOPPED_BUILD, str(stage), str(releases), step, *TABLES]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        with pytest.raises(BuildLocked, match=f"process {process.pid}"):
            publish(stage, releases, NEXT, tables=TABLES)
        process.send_signal(signal.SIGKILL)
        process.wait()
    leftovers = list(releases.glob(".*.partial"))
    assert bool(leftovers) == (step != "pointer")  # after the rename nothing is left over
    assert latest_version(releases) == VERSION
    kept = content(releases)
    assert {path: kept[path] for path in before} == before

    assert publish(stage, releases, NEXT, tables=TABLES).is_new == (step != "pointer")
    assert latest_version(releases) == NEXT
    assert not list(releases.glob(".*.partial"))
    after = content(releases)
    assert {path: after[path] for path in before if path != "latest.json"} == {
        path: data for path, data in before.items() if path != "latest.json"
    }


REFUSED_BUILD = """
import os, resource, sys
from pathlib import Path
from warehouse import release
if sys.argv[3] == "read-only":
    if os.geteuid() == 0:
        os.seteuid(65534)  # root may write anywhere, so be nobody
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    release.publish(Path(sys.argv[1]), Path(sys.argv[2]), "2026.12.1", tables=sys.argv[4:])
except release.ReleaseError as error:
    print(error)
"""


def refused_build(stage: Path, releases: Path, how: str) -> str:
    command = [sys.executable, "-c", REFUSED_BUILD, str(stage), str(releases), how, *TABLES]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_read_only_target_is_an_error_and_nothing_changes(
    stage: Path, releases: Path, tmp_path: Path
) -> None:
    publish(stage, releases, VERSION, tables=TABLES)
    before = content(releases)
    write_stage(stage, NEXT)
    opened = [folder for folder in (tmp_path, *tmp_path.parents) if folder.owner() == tmp_path.owner()][:3]
    modes = {folder: folder.stat().st_mode for folder in (*opened, releases)}
    try:
        for folder in modes:
            folder.chmod(0o555 if folder == releases else 0o755)
        (releases / ".lock").chmod(0o444)
        message = refused_build(stage, releases, "read-only")
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)
    assert "release 2026.12.1 was not published" in message
    assert "ermission denied" in message
    assert content(releases) == before


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2_000, 20_000, 400_000])
def test_disk_that_takes_no_more_is_an_error_and_nothing_changes(
    stage: Path, releases: Path, limit: int
) -> None:
    """The largest file a process may write stands in for a full disk; each limit stops another step."""
    publish(stage, releases, VERSION, tables=TABLES)
    before = content(releases)
    write_stage(stage, NEXT)
    assert "release 2026.12.1 was not published" in refused_build(stage, releases, str(limit))
    assert content(releases) == before
    assert publish(stage, releases, NEXT, tables=TABLES).is_new
