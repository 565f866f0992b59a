"""What is wrong with a source file, said to the person who wrote it. Collecting, wording and raising only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError


@dataclass(frozen=True, order=True)
class Fault:
    """One fault: the file (relative to the sources folder), line if known, field, value and what is allowed."""

    file: str
    line: int
    field: str
    value: str
    allowed: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = " = ".join(part for part in (self.field, self.value) if part)
        return f"{place}: {subject}: {self.allowed}" if subject else f"{place}: {self.allowed}"


class SourceFaults(Exception):
    """Raised once with every fault found in the sources; nothing has been written when it is raised."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = sorted(faults)
        lines = "\n".join(f"  {fault}" for fault in self.faults)
        super().__init__(f"{len(self.faults)} fault(s) in sources:\n{lines}")


@dataclass
class FaultLog:
    """Collects faults while files are read; `raise_if_any` ends the reading with all of them at once."""

    root: Path
    faults: list[Fault] = field(default_factory=list)

    def __iter__(self) -> Iterator[Fault]:
        return iter(sorted(self.faults))

    def relative(self, path: Path | str) -> str:
        """The path as a contributor knows it: below the sources folder, with forward slashes."""
        path = Path(path)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()

    def add(self, path: Path | str, field: str, value: object, allowed: str, line: int = 0) -> None:
        """Note one fault. Long values are cut so that one bad cell cannot flood the list."""
        text = "" if value is None else repr(value)
        if len(text) > 120:
            text = text[:117] + "..."
        self.faults.append(Fault(self.relative(path), line, field, text, allowed))

    def add_validation(self, path: Path | str, error: ValidationError, line: int = 0) -> None:
        """Note every error of a pydantic validation with its dotted field and our wording."""
        for problem in error.errors(include_url=False):
            name = ".".join(str(part) for part in problem["loc"] if part != "__root__")
            self.add(path, name, _shown_value(problem), _wording(problem), line)

    def raise_if_any(self) -> None:
        """Raise `SourceFaults` with all faults when there is at least one."""
        if self.faults:
            raise SourceFaults(self.faults)


def nearest(value: str, allowed: Iterable[str]) -> str:
    """`; nearest: x` for the closest allowed name, or an empty string when nothing is close."""
    names = list(allowed)
    lowered = {name.lower(): name for name in names}
    found = difflib.get_close_matches(value.lower(), list(lowered), n=1, cutoff=0.5)
    return f"; nearest: {lowered[found[0]]}" if found else ""


def unknown_name(value: str, allowed: Iterable[str], what: str) -> str:
    """Wording for a name that does not exist: what kind of name it must be and the nearest one."""
    return f"unknown {what}{nearest(value, allowed)}"


def _shown_value(problem: object) -> object:
    assert isinstance(problem, dict)
    if problem["type"] in {"missing", "value_error", "assertion_error"}:
        return None
    return problem.get("input")


def _wording(problem: object) -> str:
    assert isinstance(problem, dict)
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "missing":
        return "required field is missing"
    if kind in {"literal_error", "enum"}:
        expected = [name.strip("' ") for name in str(context.get("expected", "")).replace(" or ", ", ").split(",")]
        return f"must be one of {', '.join(expected)}{nearest(str(problem.get('input')), expected)}"
    if kind == "finite_number":
        return "must be a finite number"
    return str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
