"""What is wrong with a source file, said to the person who wrote it. Collecting, wording and raising only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from pipeline.contracts.strict import NO_CONTROL_CHARACTERS


@dataclass(frozen=True, order=True)
class Fault:
    """One fault: the file (below the sources folder), line if known, field, value and what is allowed."""

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
    # Ids of records that were refused: what names them is not wrong because of that.
    refused: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[Fault]:
        return iter(sorted(self.faults))

    def relative(self, path: Path | str) -> str:
        """The path as a contributor knows it: below the sources folder, with forward slashes."""
        path = Path(path)
        shown = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        return _printable(shown.as_posix())

    def add(self, path: Path | str, field: str, value: object, allowed: str, line: int = 0) -> None:
        """Note one fault. Long values are cut so that one bad cell cannot flood the list."""
        text = "" if value is None else _cut(repr(value))
        self.faults.append(Fault(self.relative(path), line, _cut(_printable(field)), text, allowed))

    def add_validation(
        self, path: Path | str, error: ValidationError, line: int = 0, fields: Iterable[str] = ()
    ) -> None:
        """Note every error of a pydantic validation with its dotted field and our wording; `fields` are those
        that the record may have.
        """
        for problem in error.errors(include_url=False):
            name = ".".join(str(part) for part in problem["loc"] if part != "__root__")
            allowed = _wording(problem)
            if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
                allowed += nearest(name, fields)
            self.add(path, name, _shown_value(problem), allowed, line)

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


def _cut(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


def _printable(text: str) -> str:
    """As written, or quoted with escapes where control characters would do something to a terminal."""
    return text if text.isprintable() else repr(text)


def _shown_value(problem: object) -> object:
    assert isinstance(problem, dict)
    about_a_field = bool(problem["loc"]) and not isinstance(problem.get("input"), dict)
    if problem["type"] in {"missing", "value_error", "assertion_error"} and not about_a_field:
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
        listed = str(context.get("expected", "")).replace(" or ", ", ").split(",")
        expected = [name.strip("' ") for name in listed]
        return f"must be one of {', '.join(expected)}{nearest(str(problem.get('input')), expected)}"
    if kind == "string_pattern_mismatch" and context.get("pattern") == NO_CONTROL_CHARACTERS:
        return "must not hold control characters"
    if kind in _WORDINGS:
        return _WORDINGS[kind].format(**context)
    return str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")


# Where pydantic's own words are about Python and not about the file.
_WORDINGS = {
    "finite_number": "must be a finite number",
    "float_type": "must be a number, without quotes",
    "int_type": "must be a whole number, without quotes",
    "float_parsing": "must be a number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a whole number of usual size",
    "bool_type": "must be true or false, without quotes",
    "bool_parsing": "must be true or false",
    "string_type": "must be text in quotes",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must have the form {pattern}",
    "list_type": "must be a list in square brackets",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "too_short": "must not be empty",
    "greater_than": "must be more than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "less_than": "must be less than {lt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
    "date_type": "must be a date written YYYY-MM-DD, without quotes",
}
