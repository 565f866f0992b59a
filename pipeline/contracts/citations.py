"""Reads `sources/citations/*.toml`: where facts come from and how each source was read."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
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
    """All citations as the table `citations`; the id is `<file>/<key>`."""
    folder = root / FOLDER
    rows: list[dict[str, object]] = []
    for path in source_files(root, FOLDER, ".toml"):
        stem = path_id(path, folder, log)
        document = read_toml(path, log)
        if stem is None or document is None:
            log.refused.add(path.stem)
            continue
        for key, fields in document.items():
            if not isinstance(fields, dict):
                log.add(path, key, fields, "must be a table: [key] with title, publisher, access, ...")
                continue
            record = _validate_one(path, key, fields, log)
            if record is None:
                log.refused.add(f"{stem}/{key}")
            else:
                rows.append({"citation": f"{stem}/{key}", **record.model_dump()})
    _check_read_dates(root, rows, log)
    return pl.DataFrame(rows, schema=polars_schema("citations"), orient="row").sort("citation")


def check_citation_use(root: Path, citations: pl.DataFrame, use: CitationUse, log: FaultLog) -> None:
    """A cited id must exist (dangling) and a citation must be cited (unused); both are faults."""
    known = set(citations["citation"])
    advice = ""
    for cited, (path, line) in sorted(use.used.items()):
        if cited not in known and not log.refused & {cited, cited.partition("/")[0]}:
            advice += f"{nearest(cited, known)};"
            log.add(path, "citation", cited, f"dangling citation: no such entry{nearest(cited, known)}", line)
    unread = _text_of_faulty_files(root, log)
    for unused in sorted(known - set(use.used)):
        if unused in unread or f" {unused};" in advice:  # meant by a record that has a fault already
            continue
        stem, _, key = unused.partition("/")
        log.add(root / FOLDER / f"{stem}.toml", key, None, "unused citation: nothing cites it")


def _text_of_faulty_files(root: Path, log: FaultLog) -> str:
    """What files with faults say: a citation in one of them is used, though its record was refused."""
    paths = {root / fault.file for fault in log.faults if not fault.file.startswith(f"{FOLDER}/")}
    texts = [path.read_bytes().replace(b"\0", b"") for path in sorted(paths) if path.is_file()]
    return b"\n".join(texts).decode("utf-8", errors="replace")


def _check_read_dates(root: Path, rows: list[dict[str, object]], log: FaultLog) -> None:
    """Nothing was read tomorrow. Where the clock is slow, a month after every other reading is as telling."""
    dates = sorted({read_on for row in rows if isinstance(read_on := row["read_on"], date)})
    if len(dates) < 2 or dates[-1] <= max(date.today(), dates[-2] + timedelta(days=31)):
        return
    for row in rows:
        if row["read_on"] == dates[-1]:
            stem, _, key = str(row["citation"]).partition("/")
            said = f"lies in the future: every other source was read by {dates[-2].isoformat()}"
            log.add(root / FOLDER / f"{stem}.toml", f"{key}.read_on", dates[-1].isoformat(), said)


def _validate_one(path: Path, key: str, fields: dict[str, object], log: FaultLog) -> Citation | None:
    before = len(log.faults)
    record = validate(path, Citation, fields, log)
    log.faults[before:] = [
        replace(fault, field=f"{key}.{fault.field}".rstrip(".")) for fault in log.faults[before:]
    ]
    return record
