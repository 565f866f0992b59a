"""Reads `sources/citations/*.toml`: where facts come from and how each source was read."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, nearest
from pipeline.contracts.reading import path_id, read_toml, source_files, validate
from pipeline.contracts.strict import Strict, Text
from warehouse.dictionary import polars_schema

FOLDER = "citations"
Access = Literal["read", "cited-not-opened", "general-knowledge"]


class Citation(Strict):
    """One source: what it is, where it is, when and how it was read, and under which terms."""

    title: Text
    publisher: Text
    url: Annotated[str, Field(pattern=r"^https?://\S+$", max_length=2000)] | None = None
    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")] | None = None
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{6,40}$")] | None = None
    path: Text | None = None
    lines: Text | None = None
    package: Text | None = None
    derivation: Text | None = None
    read_on: date
    licence: Text | None = None
    licence_doubt: Text | None = None
    access: Access
    note: Text | None = None

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        located = self.url or (self.repo and self.commit) or self.package or self.derivation
        if not located and self.access != "general-knowledge":
            raise ValueError("needs one of url, repo + commit, package or derivation")
        if (self.repo is None) != (self.commit is None):
            raise ValueError("repo and commit go together")
        return self


def read_citations(root: Path, log: FaultLog) -> pl.DataFrame:
    """All citations as the table `citations`; the id is `<file>/<key>`.

    A read date in the future of the newest other one is not judged here: dates are compared with the release.
    """
    folder = root / FOLDER
    rows: list[dict[str, object]] = []
    for path in source_files(root, FOLDER, ".toml"):
        stem = path_id(path, folder, log)
        document = read_toml(path, log)
        if stem is None or document is None:
            continue
        for key, fields in document.items():
            if not isinstance(fields, dict):
                log.add(path, key, fields, "must be a table: [key] with title, publisher, access, ...")
                continue
            record = _validate_one(path, key, fields, log)
            if record is not None:
                rows.append({"citation": f"{stem}/{key}", **record.model_dump()})
    return pl.DataFrame(rows, schema=polars_schema("citations"), orient="row").sort("citation")


def check_citation_use(root: Path, citations: pl.DataFrame, use: CitationUse, log: FaultLog) -> None:
    """A cited id must exist (dangling) and a citation must be cited (unused); both are faults."""
    known = set(citations["citation"])
    for cited, (path, line) in sorted(use.used.items()):
        if cited not in known:
            log.add(path, "citation", cited, f"dangling citation: no such entry{nearest(cited, known)}", line)
    for unused in sorted(known - set(use.used)):
        stem, _, key = unused.partition("/")
        log.add(root / FOLDER / f"{stem}.toml", key, None, "unused citation: nothing cites it")


def _validate_one(path: Path, key: str, fields: dict[str, object], log: FaultLog) -> Citation | None:
    before = len(log.faults)
    record = validate(path, Citation, fields, log)
    log.faults[before:] = [
        type(fault)(fault.file, fault.line, f"{key}.{fault.field}".rstrip("."), fault.value, fault.allowed)
        for fault in log.faults[before:]
    ]
    return record
