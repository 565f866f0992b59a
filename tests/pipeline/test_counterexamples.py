"""Bad input: every case of tests/counterexamples over tests/small_sources gives exactly its messages."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.contracts.faults import SourceFaults
from pipeline.contracts.sources import read_sources

TESTS = Path(__file__).parents[1]
SMALL = TESTS / "small_sources"
CASES = TESTS / "counterexamples"
EXPECTED = "expected.txt"
# Folders right below tests/counterexamples are the kinds of fault; those in variants/ vary them.
FOLDERS = {path.parent.relative_to(CASES).as_posix(): path.parent for path in CASES.rglob(EXPECTED)}
ONE_FILE_IN_TWO_CASES = "duplicate_model_in_other_case"
DECODE = "anchors/decode/geerlingguy.csv"


def overlaid(target: Path, *cases: str) -> Path:
    """A copy of the small sources with the files of the cases over it, links kept as links."""
    shutil.copytree(SMALL, target)
    for case in cases:
        shutil.copytree(
            FOLDERS[case], target, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(EXPECTED)
        )
    return target


def expected(*cases: str) -> list[str]:
    return [line for case in cases for line in (FOLDERS[case] / EXPECTED).read_text("utf-8").splitlines()]


def faults(root: Path) -> list[str]:
    try:
        read_sources(root)
    except SourceFaults as found:
        return [str(fault) for fault in found.faults]
    return []


def content(*folders: Path) -> str:
    """A digest of all names and bytes below the folders."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        digest.update(path.as_posix().encode() + b"\0")
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def tells_case_apart(folder: Path) -> bool:
    (folder / "case").touch()
    return not (folder / "CASE").exists()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] if case.startswith("variants/") else [])
        for case in sorted(FOLDERS)
    ],
)
def test_a_counterexample_gives_exactly_its_messages(tmp_path: Path, case: str) -> None:
    words = expected(case)
    assert words, "a counterexample must say what it gives"
    if case == ONE_FILE_IN_TWO_CASES and not tells_case_apart(tmp_path):
        words = []  # macOS: both names are one file, so nothing is given twice
    assert faults(overlaid(tmp_path / "sources", case)) == words


def test_faults_of_several_files_are_told_at_once(tmp_path: Path) -> None:
    cases = (
        "bandwidth_in_tb_s", "broken_json", "dangling_citation", "unused_citation", "anchor_without_a_unit",
        "alias_of_an_unknown_gpu", "config_equals_an_unknown_model", "unknown_names_in_the_grid", "latin_1",
        "empty_file", "file_name_with_a_space",
    )  # fmt: skip
    assert faults(overlaid(tmp_path / "sources", *cases)) == sorted(expected(*cases))


def test_a_refused_record_is_one_fault_though_everything_names_it(tmp_path: Path) -> None:
    """The broken model is in the grid, in aliases and claims, and cites what nothing else does."""
    root = overlaid(tmp_path / "sources", "broken_json")
    named = [path for path in root.rglob("*.*") if path.is_file() and b"Qwen/Qwen3-8B" in path.read_bytes()]
    assert len(named) >= 3
    assert faults(root) == expected("broken_json")


@pytest.mark.parametrize("command", [("sources", "check"), ("build", "--grid", "core")])
def test_a_fault_stops_everything_and_changes_nothing(tmp_path: Path, command: tuple[str, ...]) -> None:
    root = overlaid(tmp_path / "sources", "bandwidth_in_tb_s", "control_characters")
    warehouse = tmp_path / "warehouse"
    (warehouse / "releases" / "2026.1.0").mkdir(parents=True)
    (warehouse / "releases" / "latest.json").write_text('{"version": "2026.1.0"}')
    before = content(tmp_path)
    place = ["--warehouse", str(warehouse)] if command[0] == "build" else []
    result = CliRunner().invoke(app, [*command, "--sources", str(root), *place])
    assert result.exit_code == 1
    assert "2 fault(s)" in result.output
    for part in ("h100-sxm5-80gb.toml", "bandwidth_gb_s", "3.35", "looks like TB/s"):
        assert part in result.output
    assert "\x1b[31m" not in result.output  # what a file says does not reach the terminal as a command
    assert content(tmp_path) == before


def anchors_with(root: Path, **cells: str) -> pl.DataFrame:
    """The table `anchors` when the first row of DECODE says `cells` instead."""
    lines = (root / DECODE).read_text("utf-8").splitlines()
    names, row = lines[0].split(","), lines[1].split(",")
    lines[1] = ",".join(cells.get(name, cell) for name, cell in zip(names, row, strict=True))
    (root / DECODE).write_text("\n".join(lines) + "\n", "utf-8")
    return read_sources(root)["anchors"].filter(pl.col("anchor_id") == row[0])


@pytest.mark.parametrize(
    ("cells", "state", "reason"),
    [
        ({}, "accepted", None),
        ({"decode_tok_s": "99999", "physics_flag": "exceeds-bandwidth"}, "flagged", "impossible-rate"),
        ({"gpu_name": "Vega 56 (somebody's)"}, "unresolved", None),
        ({"model_name": "gpt-oss 21b", "framework_name": "my own engine"}, "unresolved", None),
    ],
)
def test_a_doubtful_anchor_is_a_state_and_no_fault(
    tmp_path: Path, cells: dict[str, str], state: str, reason: str | None
) -> None:
    row = anchors_with(overlaid(tmp_path / "sources"), **cells)
    assert row.select("state", "state_reason").row(0) == (state, reason)


def test_an_anchor_above_the_bound_is_read_like_any_other(tmp_path: Path) -> None:
    """It is flagged where it meets its estimate (`anchor_residuals`), as only there the bound is known."""
    row = anchors_with(overlaid(tmp_path / "sources"), decode_tok_s="99999")
    assert row.get_column("decode_tok_s").to_list() == [99999.0]
