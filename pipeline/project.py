"""What is built from where to where: sources, grid, version, stage and releases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.contracts.grid import GridName
from warehouse.dataset import VERSION_PATTERN

HOME = Path(__file__).resolve().parent.parent
CHANGELOG = HOME / "CHANGELOG.md"


@dataclass(frozen=True)
class Project:
    """The folders of one project, the grid of its cubes and the data version; tests point them elsewhere."""

    sources: Path
    stage: Path
    releases: Path
    version: str
    grid: GridName = "full"


def project(
    sources: Path | None = None,
    warehouse: Path | None = None,
    grid: GridName = "full",
    version: str | None = None,
) -> Project:
    """The repository's own folders and the version CHANGELOG.md names, unless told otherwise.

    Stage and releases lie in the warehouse; those of the core grid in a folder of their own, so that quick
    work never touches what is published. Raises ValueError as `data_version`.
    """
    if warehouse is None:
        warehouse = HOME / "warehouse" if grid == "full" else HOME / "warehouse" / grid
    return Project(
        sources=(HOME / "sources" if sources is None else sources).absolute(),
        stage=(warehouse / "stage").absolute(),
        releases=(warehouse / "releases").absolute(),
        version=data_version(CHANGELOG) if version is None else version,
        grid=grid,
    )


def data_version(changelog: Path) -> str:
    """The version of the first `## YYYY.M.N` heading. Raises ValueError when there is none."""
    for line in changelog.read_text(encoding="utf-8").splitlines():
        title = line.removeprefix("## ").split()
        if line.startswith("## ") and title and VERSION_PATTERN.fullmatch(title[0]):
            return title[0]
    raise ValueError(f"{changelog.name} has no heading `## YYYY.M.N`")
