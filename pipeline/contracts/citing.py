"""Checks that every number of a record is cited, and lays cited numbers out as rows of the `facts` table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.contracts.faults import FaultLog


@dataclass
class CitationUse:
    """Who cites what: filled by every reader, compared with the citations once all files are read."""

    used: dict[str, tuple[str, int]] = field(default_factory=dict)
    facts: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def note(self, citation: str, path: Path | str, line: int = 0) -> None:
        """Remember the first place that cites `citation`."""
        self.used.setdefault(citation, (str(path), line))

    def note_fact(self, table: str, record: str, field: str, value: object, citation: str) -> None:
        """One row for the `facts` table: which number, its value as written, and where it is from."""
        self.facts.append((table, record, field, str(value), citation))


def check_cited(
    path: Path,
    table: str,
    record_id: str,
    fields: Mapping[str, Any],
    cite: Mapping[str, list[str]],
    log: FaultLog,
    use: CitationUse,
) -> None:
    """Every number among `fields` (nested by dots) must be listed under a citation; listed ones must be set.

    `cite` maps citation id to field names, as in the record's `[cite]` table. Faults go to `log`, what is
    cited to `use` (dangling ids are found later, when all citations are known).
    """
    numbers = dict(_numbers(fields))
    cited: set[str] = set()
    for citation, names in cite.items():
        use.note(citation, path)
        for name in names:
            if name not in numbers and _value_at(fields, name) is None:
                log.add(path, f"cite.{citation}", name, "cites a field that is not set")
                continue
            cited.add(name)
            use.note_fact(table, record_id, name, _value_at(fields, name), citation)
    check_uncited(path, numbers, cited, log)


def check_uncited(path: Path, numbers: Mapping[str, float], cited: Collection[str], log: FaultLog) -> None:
    """Every number that no citation lists is a fault."""
    for name in sorted(set(numbers) - set(cited)):
        log.add(path, name, numbers[name], "number without a citation: list it under [cite]")


def _numbers(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


def _value_at(fields: Mapping[str, Any], dotted: str) -> Any:
    value: Any = fields
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
