"""The grid as the assets see it: the whole file and the span this project builds."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.contracts.faults import FaultLog
from pipeline.contracts.grid import Grid, Span, read_grid
from pipeline.project import Project


@dataclass(frozen=True)
class ProjectGrid:
    """The grid and its span of this project (`full` or `core`)."""

    grid: Grid
    span: Span


def project_grid(built: Project) -> ProjectGrid:
    """The project's grid. Raises SourceFaults when grid.toml is missing or faulty."""
    log = FaultLog(built.sources)
    grid = read_grid(built.sources, log)
    log.raise_if_any()
    assert grid is not None
    return ProjectGrid(grid, grid.span(built.grid))
