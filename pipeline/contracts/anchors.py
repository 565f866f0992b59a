"""Reads `sources/anchors/decode/*.csv`: measured results of one request, as their sources wrote them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

import polars as pl
from pydantic import Field, StringConstraints, model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.reading import RecordModel, path_id, read_rows, source_files
from pipeline.contracts.strict import (
    Count,
    PartialDate,
    Positive,
    PositiveInt,
    PositiveShort,
    StrictRow,
    Text,
)

FOLDER = "anchors/decode"
AnchorId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$", max_length=40)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
EvidenceKind = Literal[
    "raw-log", "raw-csv", "raw-csv-derived", "raw-json", "raw-output", "raw-output-doc", "raw-output-forum",
    "ci-json",
    "table", "table-derived", "table-issue", "table-excerpt", "benchmark-submission",
    "benchmark-submission-copy", "fit",
]  # fmt: skip
Verification = Literal[
    "raw-output", "project-table", "vendor-table", "mlperf-verified", "mlperf-verified-open"
]


class MeasuredRow(StrictRow):
    """What every measured row says about its run; names are as the source wrote them, absent when it wrote
    none.
    """

    anchor_id: AnchorId
    gpu_name: Text | None = None
    n_gpus: PositiveShort | None = None


class AnchorRow(MeasuredRow):
    """One measured setting of one request: decode, prompt processing, or both."""

    host_note: Text | None = None
    framework_name: Text | None = None
    framework_version: Text | None = None
    backend_name: Text | None = None
    model_name: Text | None = None
    model_size_gib: Positive | None = None
    params_billion: Positive | None = None
    quant_name: Text | None = None
    kv_cache_name: Text | None = None
    flash_attention: Literal["on", "off"] | None = None
    start_depth_tokens: Count | None = None
    prompt_tokens: PositiveInt | None = None
    generated_tokens: Positive | None = None
    n_requests: PositiveInt | None = None
    offload: Text | None = None
    speculation: Text | None = None
    rate_kind: Literal["decode", "decode-in-context", "inter-token", "wall"]
    prefill_tok_s: Positive | None = None
    prefill_std_tok_s: NotNegative | None = None
    decode_tok_s: Positive | None = None
    decode_std_tok_s: NotNegative | None = None
    measured_on: PartialDate | None = None
    evidence_kind: EvidenceKind
    verification: Verification
    physics_flag: Literal["exceeds-bandwidth"] | None = None
    note: Text | None = None
    citation: Text
    locator: Text | None = None

    @model_validator(mode="after")
    def _measures_something(self) -> Self:
        if self.decode_tok_s is None and self.prefill_tok_s is None:
            raise ValueError("needs decode_tok_s, prefill_tok_s or both")
        return self


SCHEMA: dict[str, type[pl.DataType]] = {
    "anchor_id": pl.String, "publisher": pl.String, "gpu_name": pl.String, "n_gpus": pl.Int16,
    "host_note": pl.String,
    "framework_name": pl.String, "framework_version": pl.String, "backend_name": pl.String,
    "model_name": pl.String,
    "model_size_gib": pl.Float64, "params_billion": pl.Float64, "quant_name": pl.String,
    "kv_cache_name": pl.String,
    "flash_attention": pl.String, "start_depth_tokens": pl.Int32, "prompt_tokens": pl.Int32,
    "generated_tokens": pl.Float64, "n_requests": pl.Int32, "offload": pl.String, "speculation": pl.String,
    "rate_kind": pl.String, "prefill_tok_s": pl.Float64, "prefill_std_tok_s": pl.Float64,
    "decode_tok_s": pl.Float64,
    "decode_std_tok_s": pl.Float64, "measured_on": pl.String, "evidence_kind": pl.String,
    "verification": pl.String,
    "physics_flag": pl.String, "note": pl.String, "citation": pl.String, "locator": pl.String,
}  # fmt: skip


def read_anchors(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """All single-request rows as written, one per `anchor_id`, with `publisher` (the file's name).

    Faults: broken CSV, an impossible or future date, a rate that is not positive, a repeated `anchor_id`.
    """
    return read_measured(root, FOLDER, AnchorRow, SCHEMA, log, use)


def read_measured(
    root: Path,
    folder: str,
    model: type[RecordModel],
    schema: dict[str, type[pl.DataType]],
    log: FaultLog,
    use: CitationUse,
) -> pl.DataFrame:
    """The rows of every publisher's file under `folder` as a frame with `schema`; faulty rows are logged,
    left out.
    """
    read_on = read_dates(root)
    first_seen: dict[str, str] = {}
    columns: dict[str, list[object]] = {name: [] for name in schema}
    for path, line, row in _rows(root, folder, model, log):
        anchor_id = getattr(row, "anchor_id")  # noqa: B009  the model is a type variable
        place = f"{log.relative(path)}:{line}"
        citation = str(getattr(row, "citation"))  # noqa: B009
        use.note(citation, path, line)
        if first_seen.setdefault(anchor_id, place) != place:
            log.add(path, "anchor_id", anchor_id, f"is already used at {first_seen[anchor_id]}", line)
            continue
        measured_on = getattr(row, "measured_on", None)
        wrong = date_fault(measured_on, read_on.get(citation))
        if wrong:
            log.add(path, "measured_on", measured_on, wrong, line)
            continue
        for name, values in columns.items():
            values.append(path.stem if name == "publisher" else getattr(row, name))
    return pl.DataFrame(columns, schema=schema)


def date_fault(measured_on: str | None, read_on: date | None) -> str | None:
    """What is wrong with a date of year, month or day precision: it lies after the reading."""
    if measured_on is None or read_on is None:
        return None
    earliest = date(*[*map(int, measured_on.split("-")), 1, 1][:3])
    if earliest > read_on:
        return f"lies in the future of its citation, read on {read_on.isoformat()}"
    return None


def read_dates(root: Path) -> dict[str, date]:
    """Citation id -> the day its source was read; broken citation files are reported by their own reader."""
    found: dict[str, date] = {}
    for path in source_files(root, "citations", ".toml"):
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            continue
        for key, entry in document.items():
            if isinstance(entry, dict) and isinstance(entry.get("read_on"), date):
                found[f"{path.stem}/{key}"] = entry["read_on"]
    return found


def _rows(
    root: Path, folder: str, model: type[RecordModel], log: FaultLog
) -> Iterator[tuple[Path, int, RecordModel]]:
    for path in source_files(root, folder, ".csv"):
        if path_id(path, root / folder, log) is None:
            continue
        if not re.fullmatch(r"[a-z0-9-]+", path.stem):
            log.add(path, "path", path.stem, "a publisher's name has lower-case letters, digits and '-' only")
            continue
        for line, row in read_rows(path, model, log):
            yield path, line, row
