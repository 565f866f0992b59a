"""Reads `sources/quants/gguf_publishers.csv`: how those who publish GGUF files make them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Literal, Self

import polars as pl
from pydantic import model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import Count, StrictRow, Text
from warehouse.dictionary import polars_schema

PUBLISHERS_FILE = "quants/gguf_publishers.csv"


class Publisher(StrictRow):
    """One habit; conditions that are given must all hold. Lists are parted by spaces.

    `repo_part` is in the repository's name; `released_from` is the release of the model.
    """

    publisher: Text
    order: Count
    repo_part: Text | None = None
    quants: Text | None = None
    model_types: Text | None = None
    released_from: date | None = None
    with_imatrix: bool | None = None
    recipe: Literal["plain", "own", "keeps_mxfp4"] = "plain"
    n_agree: Count
    n_disagree: Count
    note: Text | None = None
    citation: Text

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.with_imatrix is None and self.recipe == "plain":
            raise ValueError("a habit says with_imatrix or another recipe than plain")
        return self


def read_gguf_publishers(
    root: Path, log: FaultLog, use: CitationUse, quants: Collection[str]
) -> pl.DataFrame:
    """The table `gguf_publishers`; faults go to `log`, citations to `use`. `quants` are the known ids."""
    path = root / PUBLISHERS_FILE
    rows: dict[tuple[str, int], Publisher] = {}
    if path.is_file():
        for line, row in read_rows(path, Publisher, log):
            for quant in (row.quants or "").split():
                if quant not in quants:
                    log.add(path, "quants", quant, unknown_name(quant, quants, "quant"), line)
            if (row.publisher, row.order) in rows:
                log.add(path, "order", row.order, "is given twice for this publisher", line)
                continue
            use.note(row.citation, path, line)
            rows[row.publisher, row.order] = row
    return pl.DataFrame(
        [rows[key].model_dump() for key in sorted(rows)], schema=polars_schema("gguf_publishers")
    )
