"""Reads `sources/capacity_rules/rules.csv`: shares and reserves for accelerators that no reading covers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from estimator.usable_memory import RULES
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import Positive, StrictRow, Text
from warehouse.dictionary import polars_schema

FILE = "capacity_rules/rules.csv"


class RuleRow(StrictRow):
    """One rule: a share of the memory (at most 1), or GiB."""

    rule: Text
    value: Positive
    unit: Literal["share", "GiB"]
    citation: Text
    locator: Text | None = None
    note: Text


def read_capacity_rules(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """The table `capacity_rules`, sorted. Logs: a missing file or rule, an unknown or repeated one, a share
    above 1.
    """
    path = root / FILE
    rows: dict[str, dict[str, object]] = {}
    if not path.is_file():
        log.add(path, "", None, "file is missing")
        return pl.DataFrame(schema=polars_schema("capacity_rules"))
    for line, row in read_rows(path, RuleRow, log):
        use.note(row.citation, path, line)
        if row.rule not in RULES:
            log.add(path, "rule", row.rule, unknown_name(row.rule, RULES, "rule"), line)
        elif row.rule in rows:
            log.add(path, "rule", row.rule, "is given twice", line)
        elif row.unit == "share" and row.value > 1:
            log.add(path, "value", row.value, "a share is at most 1", line)
        else:
            rows[row.rule] = row.model_dump()
            use.note_fact("capacity_rules", row.rule, "value", row.value, row.citation)
    for rule in sorted(set(RULES) - set(rows)):
        log.add(path, "rule", rule, "is missing or faulty")
    return pl.DataFrame(list(rows.values()), schema=polars_schema("capacity_rules"), orient="row").sort(
        "rule"
    )
