"""Reads `sources/labels.toml`: English and Chinese names of the closed sets of words."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.reading import read_toml, validate
from pipeline.contracts.strict import Strict, Text
from warehouse.dictionary import polars_schema

FILE = "labels.toml"


class Label(Strict):
    """The two names of a word."""

    en: Text
    zh: Text


def read_labels(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """The table `labels`: one row per word of a set. Labels state no facts, so `use` stays as it is."""
    path = root / FILE
    document = read_toml(path, log) if path.is_file() else {}
    if not path.is_file():
        log.add(path, "", None, "file is missing")
    rows = []
    for term, words in sorted((document or {}).items()):
        if not isinstance(words, dict):
            log.add(path, term, words, "must be a table of words")
            continue
        for value, fields in words.items():
            if not isinstance(fields, dict):
                log.add(path, f"{term}.{value}", fields, "must be { en = ..., zh = ... }")
                continue
            label = validate(path, Label, fields, log)
            if label is not None:
                rows.append({"term": term, "value": value, "en": label.en, "zh": label.zh})
    return pl.DataFrame(rows, schema=polars_schema("labels"))
