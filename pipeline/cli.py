"""The command line: options, what a person sees, exit codes. Commands import the heavy modules they need.

Exit codes: 0 done, 1 faults in the sources or a failed build, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from pipeline.build import BuildFailed, BuildReport
    from pipeline.contracts.faults import Fault

app = typer.Typer(
    help="Build and check the Tokcube dataset.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
sources_app = typer.Typer(help="Look at sources/.", no_args_is_help=True)
app.add_typer(sources_app, name="sources")

FAILED, INTERRUPTED = 1, 130
_WIDTH_WITHOUT_TERMINAL = 140


class Grid(str, Enum):  # noqa: UP042  (typer shows its values)
    """What the cubes span; see sources/grid.toml."""

    full = "full"
    core = "core"


SourcesOption = Annotated[
    Path | None,
    typer.Option(
        "--sources",
        help="Folder of the sources.",
        show_default="sources/ of the project",
        exists=True,
        file_okay=False,
    ),
]
WarehouseOption = Annotated[
    Path | None,
    typer.Option(
        "--warehouse", help="Folder for stage/ and releases/.", show_default="warehouse/ of the project"
    ),
]


@app.command()
def build(
    grid: Annotated[
        Grid, typer.Option(help="full is published; core is a small one for quick work.")
    ] = Grid.full,
    version: Annotated[
        str | None, typer.Option(help="Data version YYYY.M.N.", show_default="the one CHANGELOG.md names")
    ] = None,
    sources: SourcesOption = None,
    warehouse: WarehouseOption = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks of failed steps.")] = False,
) -> None:
    """Build the dataset: read the sources, compute every table, write the release."""
    console = _console()
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", style="dim"),
        console=console,
        disable=not console.is_terminal,
    )
    with _failures_for_people(console, traceback):
        from pipeline.build import build_dataset
        from pipeline.progress import Messages, ProgressBars
        from pipeline.project import project

        built = project(sources, warehouse, grid.value, version)
        console.print(
            f"version [bold]{built.version}[/bold], grid {built.grid}, from {escape(str(built.sources))}"
        )
        if (built.releases / built.version).exists():
            console.print(
                "this version is released already, so the build must come out the same", style="yellow"
            )
        progress = ProgressBars(bars) if console.is_terminal else Messages(console.print)
        with bars:
            report = build_dataset(built, progress)
        _print_report(console, report)


@sources_app.command("check")
def sources_check(sources: SourcesOption = None) -> None:
    """Read every file of the sources and list every fault; exit code 1 when there is one."""
    console = _console()
    with _failures_for_people(console, traceback=False):
        from pipeline.contracts.sources import read_sources
        from pipeline.project import project

        root = project(sources).sources
        tables = read_sources(root)
        shown = Table("table", "rows", title=f"no faults in {escape(str(root))}", title_justify="left")
        shown.columns[1].justify = "right"
        for name, frame in sorted(tables.items()):
            shown.add_row(name, f"{frame.height:,}")
        console.print(shown)


@app.command()
def version() -> None:
    """Say which version of the code and of the schema this is."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from warehouse.dataset import SCHEMA_VERSION

    try:
        code = installed("tokcube")
    except PackageNotFoundError:
        code = "not installed"
    _console().print(f"tokcube {code}, schema {SCHEMA_VERSION}")


def _console() -> Console:
    """A console on a descriptor of its own: Dagster redirects the usual ones while a kept run goes on."""
    stream: TextIO
    try:
        stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    except (OSError, io.UnsupportedOperation, ValueError):
        stream = sys.stdout  # a test's or a notebook's
    return Console(file=stream, width=None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL)


@contextmanager
def _failures_for_people(console: Console, traceback: bool) -> Iterator[None]:
    """Expected failures become words and an exit code; a fault of ours keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("interrupted; releases are as they were, the stage may hold parts")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        _explain(console, error, traceback)


def _explain(console: Console, error: Exception, traceback: bool) -> NoReturn:
    from pipeline.contracts.faults import SourceFaults
    from warehouse.dictionary import DictionaryError

    if isinstance(error, SourceFaults):
        _print_faults(console, error.faults)
        raise typer.Exit(FAILED) from None
    if isinstance(error, DictionaryError):
        console.print(f"[red]fault in the column dictionary[/red] {escape(str(error))}")
        raise typer.Exit(FAILED) from None
    from pipeline.build import BuildFailed  # last: it brings Dagster along

    if isinstance(error, BuildFailed):
        _print_failed(console, error, traceback)
        raise typer.Exit(FAILED) from None
    raise error


def _print_faults(console: Console, faults: list[Fault]) -> None:
    shown = Table("file", "line", "field", "value", "what is allowed", title_justify="left")
    shown.title = f"[red]{len(faults)} fault(s) in the sources; nothing was changed[/red]"
    shown.columns[0].overflow = "fold"
    for fault in faults:
        line = str(fault.line) if fault.line else ""
        shown.add_row(*(escape(text) for text in (fault.file, line, fault.field, fault.value, fault.allowed)))
    console.print(shown)


def _print_failed(console: Console, error: BuildFailed, traceback: bool) -> None:
    console.print("[red]the build failed; nothing was released[/red]")
    for failure in error.failures:
        console.print(f"  [bold]{escape(failure.where)}[/bold]: {escape(failure.why)}")
        if traceback and failure.trace:
            console.print(escape(failure.trace), style="dim")
    if not traceback and any(failure.trace for failure in error.failures):
        console.print("run again with --traceback to see where", style="dim")


def _print_report(console: Console, report: BuildReport) -> None:
    from pipeline.progress import duration

    shown = Table("table", "rows", "files", "MiB", "seconds", title="tables", title_justify="left")
    for column in shown.columns[1:]:
        column.justify = "right"
    for one in report.tables:
        size = f"{one.n_bytes / 2**20:,.1f}"
        shown.add_row(one.table, f"{one.rows:,}", f"{one.files:,}", size, f"{one.seconds:.1f}")
    for what, seconds in (("checks", report.check_seconds), ("release", report.release_seconds)):
        shown.add_row(what, "", "", "", f"{seconds:.1f}", style="dim")
    console.print(shown)
    for warning in report.warnings:
        console.print(f"[yellow]warning[/yellow] {escape(warning)}")
    rows = sum(one.rows for one in report.tables)
    where = f" in {escape(str(report.release))}" if report.release else ""
    console.print(f"{rows:,} rows{where}, {duration(report.seconds)}")
