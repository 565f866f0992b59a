"""Reads `sources/quants/gguf_tokenizers.csv`: how large the metadata of GGUF files are, by vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import StringConstraints

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import PositiveInt, StrictRow, Text
from warehouse.dictionary import polars_schema

TOKENIZERS_FILE = "quants/gguf_tokenizers.csv"


class Tokenizer(StrictRow):
    """One vocabulary and the files that its metadata were read off: one known to the byte, or several rounded
    ones, whose roundings leave a range in common; its middle counts.

    `model_types`: kinds of model, parted by spaces, where several vocabularies have the same size.
    """

    tokenizer: Text
    kind: Literal["bpe", "spm"]
    vocab_size: PositiveInt
    model_types: Text | None = None
    metadata_bytes: PositiveInt
    file_ids: Annotated[str, StringConstraints(pattern=r"^fs-[0-9a-f]{12}( fs-[0-9a-f]{12})*$")]
    note: Text | None = None
    citation: Text


def read_gguf_tokenizers(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """The table `gguf_tokenizers`, by name; faults go to `log`, citations to `use`."""
    path = root / TOKENIZERS_FILE
    rows: dict[str, Tokenizer] = {}
    if path.is_file():
        for line, row in read_rows(path, Tokenizer, log):
            if row.tokenizer in rows:
                log.add(path, "tokenizer", row.tokenizer, "is given twice", line)
                continue
            use.note(row.citation, path, line)
            rows[row.tokenizer] = row
    return pl.DataFrame(
        [rows[name].model_dump() for name in sorted(rows)], schema=polars_schema("gguf_tokenizers")
    )
