"""The command line: what a person sees and the exit code, without tracebacks for what can be expected."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from pipeline.build import BuildFailed, BuildReport, Failure, TableReport
from pipeline.cli import app
from pipeline.contracts.faults import Fault, SourceFaults

FAULT = Fault("gpus/nvidia/rtx-4090-24gb.toml", 3, "memory_gib", "-24", "must be more than 0")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def replace(monkeypatch: pytest.MonkeyPatch, name: str, outcome: object) -> list[tuple[object, ...]]:
    """Put a function in place that gives `outcome`, or raises it; returns what it was called with."""
    calls: list[tuple[object, ...]] = []

    def stand_in(*arguments: object) -> object:
        calls.append(arguments)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    module, _, attribute = name.rpartition(".")
    __import__(module)
    monkeypatch.setattr(sys.modules[module], attribute, stand_in)
    return calls


def test_sources_check_counts_rows_when_there_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace(
        monkeypatch, "pipeline.contracts.sources.read_sources", {"gpus": pl.DataFrame({"gpu": ["a"] * 1234})}
    )
    code, text = run("sources", "check", "--sources", str(tmp_path))
    assert code == 0
    assert "no faults" in text
    assert "1,234" in text


def test_sources_check_lists_every_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = Fault("quants/awq.toml", 0, "name", "[x]", "unknown field")
    replace(monkeypatch, "pipeline.contracts.sources.read_sources", SourceFaults([FAULT, other]))
    code, text = run("sources", "check", "--sources", str(tmp_path))
    assert code == 1
    for part in (
        "2 fault(s)",
        FAULT.file,
        "memory_gib",
        "-24",
        "must be more than 0",
        "quants/awq.toml",
        "[x]",
    ):
        assert part in text
    assert "Traceback" not in text


def test_sources_that_do_not_exist_are_named(tmp_path: Path) -> None:
    code, text = run("sources", "check", "--sources", str(tmp_path / "nowhere"))
    assert code == 2
    assert "nowhere" in text


def test_build_reports_tables_warnings_and_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = BuildReport(
        tables=(TableReport("estimates", 1_000_000, 3, 2**21, 4.2), TableReport("gpus", 3, 1, 2**10, 0.1)),
        warnings=("anchors: 12 names are unresolved",),
        seconds=65.0,
        release=tmp_path / "2026.12.0",
    )
    calls = replace(monkeypatch, "pipeline.build.build_dataset", report)
    code, text = run("build", "--grid", "core", "--version", "2026.12.0", "--warehouse", str(tmp_path))
    assert code == 0
    for part in ("1,000,000", "2.0", "12 names are unresolved", "1,000,003 rows", "1 min 5 s"):
        assert part in text
    [(built, _)] = calls
    assert (built.grid, built.version, built.releases) == ("core", "2026.12.0", tmp_path / "releases")


def test_build_shows_faults_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace(monkeypatch, "pipeline.build.build_dataset", SourceFaults([FAULT]))
    code, text = run("build", "--warehouse", str(tmp_path))
    assert code == 1
    assert "nothing was changed" in text
    assert not list(tmp_path.iterdir())


def test_build_names_failed_steps_and_traces_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = BuildFailed([Failure("weights", "ValueError: no such column", "Stack Trace: line 7")])
    replace(monkeypatch, "pipeline.build.build_dataset", failed)
    code, text = run("build")
    assert code == 1
    assert "weights: ValueError: no such column" in text
    assert "line 7" not in text
    assert "line 7" in run("build", "--traceback")[1]


def test_an_interrupted_build_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "pipeline.build.build_dataset", KeyboardInterrupt())
    code, text = run("build")
    assert code == 130
    assert "interrupted" in text


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "pipeline.build.build_dataset", ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        run("build")


def test_an_unknown_grid_is_wrong_use() -> None:
    assert run("build", "--grid", "huge")[0] == 2


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from pipeline.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print(sorted({'dagster', 'polars', 'duckdb', 'matplotlib', 'pyarrow'} & set(sys.modules)))\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert time.monotonic() - began < 10  # a fifth of a second of work; the rest is for a busy machine
