"""Reads `sources/claims/*.toml`: published statements split into single ones that can be checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Self

import polars as pl
from pydantic import model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import path_id, read_toml, source_files, validate
from pipeline.contracts.strict import Positive, PositiveInt, PositiveShort, Strict, Text

FOLDER = "claims"
Quantity = Literal[
    "active_params", "bandwidth", "compute_ratio", "decode_ratio", "decode_tok_s", "definition", "fits",
    "gpus_needed",
    "has_link", "kv_cache", "kv_ratio", "kv_smaller", "largest_params", "memory", "throughput_ratio", "total",
    "total_params", "verdict", "weights", "weights_ratio",
]  # fmt: skip
Unit = Literal["tok/s", "GB", "GiB", "GB/s", "GPUs", "billion", "times"]
Verdict = Literal["comfortable", "tight", "no_fit"]
_WITHOUT_NUMBERS = ("definition", "fits", "has_link", "kv_smaller", "verdict")


class Claim(Strict):
    """One statement: what it is about, the quantity, and the range it gives (low = high for a point)."""

    claim: Text
    question: PositiveShort | None = None
    statement: Text
    gpu: Text | None = None
    other_gpu: Text | None = None
    n_gpus: PositiveShort | None = None
    model: Text | None = None
    quant: Text | None = None
    other_quant: Text | None = None
    framework: Text | None = None
    other_framework: Text | None = None
    context_tokens: PositiveInt | None = None
    n_requests: PositiveInt | None = None
    system: Literal["linux", "windows", "macos"] | None = None
    quantity: Quantity
    low: Positive | None = None
    high: Positive | None = None
    unit: Unit | None = None
    tolerance_percent: Positive | None = None
    fits: bool | None = None
    verdict: Verdict | None = None
    is_upper_bound: bool = False
    is_beyond_native: bool | None = None
    advice: Text | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        numbers = self.low is not None or self.high is not None
        if numbers == (self.quantity in _WITHOUT_NUMBERS):
            raise ValueError(f"{self.quantity} {'takes no' if numbers else 'needs a'} low or high")
        if numbers != (self.unit is not None):
            raise ValueError("low or high and unit go together")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        has_no_answer = self.quantity == "fits" and self.fits is None
        if has_no_answer or (self.quantity == "verdict") != (self.verdict is not None):
            raise ValueError(f"{self.quantity} needs its answer")
        return self


class Page(Strict):
    """A page of statements; its claims are checked one by one."""

    title: Text
    citation: Text
    claim: list[dict[str, object]]


class PageRow(Strict):
    """One row of a page that repeats one table for a GPU and a model; sizes in its G, read as GiB."""

    claim: Text
    context_tokens: PositiveInt
    quant: Text
    weights: Positive
    kv_cache: Positive
    total: Positive
    verdict: Verdict
    beyond_native: bool
    decode_low: Positive | None = None
    decode_high: Positive | None = None
    advice: Literal["single-gpu", "single-gpu-smaller-kv", "smaller-quant-or-offload-or-second-gpu"]

    @model_validator(mode="after")
    def _speed_where_it_fits(self) -> Self:
        without = self.decode_low is None
        if (self.verdict == "no_fit") != without or without != (self.decode_high is None):
            raise ValueError("decode_low and decode_high go with every verdict but no_fit")
        return self


class TablePage(Strict):
    """A page with one table for one GPU and one model."""

    title: Text
    citation: Text
    gpu: Text
    n_gpus: PositiveShort
    model: Text
    framework: Text
    system: Literal["linux", "windows", "macos"]
    runtime: Positive
    tolerance_percent: Positive
    row: list[dict[str, object]]


SCHEMA: dict[str, type[pl.DataType]] = {
    "claim": pl.String, "page": pl.String, "question": pl.Int16, "statement": pl.String, "gpu": pl.String,
    "other_gpu": pl.String, "n_gpus": pl.Int16, "model": pl.String, "quant": pl.String,
    "other_quant": pl.String,
    "framework": pl.String, "other_framework": pl.String, "context_tokens": pl.Int32, "n_requests": pl.Int32,
    "system": pl.String, "quantity": pl.String, "low": pl.Float64, "high": pl.Float64, "unit": pl.String,
    "tolerance_percent": pl.Float64, "fits": pl.Boolean, "verdict": pl.String, "is_upper_bound": pl.Boolean,
    "is_beyond_native": pl.Boolean, "advice": pl.String, "citation": pl.String,
}  # fmt: skip


def read_claims(
    root: Path, log: FaultLog, use: CitationUse, ids: Mapping[str, Iterable[str]]
) -> pl.DataFrame:
    """All statements, one row each; the id is `<file>/<claim>`. A row of a table page gives one row per
    figure.

    `ids` gives the known ids by kind (gpu, model, quant, framework); others are faults with the nearest.
    Kinds left out are not checked.
    """
    known = {kind: set(values) for kind, values in ids.items()}
    rows: list[dict[str, object]] = []
    for path in source_files(root, FOLDER, ".toml"):
        stem, document = path_id(path, root / FOLDER, log), read_toml(path, log)
        if stem is None or document is None:
            continue
        claims, citation = (
            _table_page(path, document, log) if "row" in document else _page(path, document, log)
        )
        if citation is not None:
            use.note(citation, path)
        seen: set[str] = set()
        told: set[tuple[str, str]] = set()
        for claim in claims:
            if claim.claim in seen:
                log.add(path, "claim", claim.claim, "is already used in this file")
                continue
            seen.add(claim.claim)
            if _names_are_known(path, claim, known, told, log):
                rows.append(
                    claim.model_dump()
                    | {"claim": f"{stem}/{claim.claim}", "page": stem, "citation": citation}
                )
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _page(path: Path, document: dict[str, object], log: FaultLog) -> tuple[list[Claim], str | None]:
    page = validate(path, Page, document, log)
    if page is None:
        return [], None
    claims = [validate(path, Claim, record, log) for record in page.claim]
    return [claim for claim in claims if claim is not None], page.citation


def _table_page(path: Path, document: dict[str, object], log: FaultLog) -> tuple[list[Claim], str | None]:
    page = validate(path, TablePage, document, log)
    if page is None:
        return [], None
    rows = [validate(path, PageRow, record, log) for record in page.row]
    return [claim for row in rows if row is not None for claim in _claims_of(page, row)], page.citation


def _claims_of(page: TablePage, row: PageRow) -> list[Claim]:
    about: dict[str, object] = {
        "gpu": page.gpu,
        "n_gpus": page.n_gpus,
        "model": page.model,
        "quant": row.quant,
        "framework": page.framework,
        "context_tokens": row.context_tokens,
        "n_requests": 1,
        "system": page.system,
        "is_beyond_native": row.beyond_native,
    }
    figures = [
        ("weights", row.weights, row.weights, "GiB", None, "size of the weights"),
        ("kv_cache", row.kv_cache, row.kv_cache, "GiB", None, "size of the KV cache"),
        (
            "total",
            row.total,
            row.total,
            "GiB",
            None,
            f"weights, KV cache and {page.runtime:g} GiB of overhead",
        ),
        (
            "decode_tok_s",
            row.decode_low,
            row.decode_high,
            "tok/s",
            page.tolerance_percent,
            "speed of one request",
        ),
    ]
    numbers: list[dict[str, object]] = [
        {
            "claim": f"{row.claim}-{quantity.replace('_', '-')}",
            "statement": statement,
            "quantity": quantity,
            "low": low,
            "high": high,
            "unit": unit,
            "tolerance_percent": tolerance,
        }
        for quantity, low, high, unit, tolerance, statement in figures
        if low is not None
    ]
    verdict: dict[str, object] = {
        "claim": f"{row.claim}-verdict",
        "statement": "whether it fits",
        "quantity": "verdict",
        "verdict": row.verdict,
        "advice": row.advice,
    }
    return [Claim.model_validate(about | one) for one in [*numbers, verdict]]


def _names_are_known(
    path: Path, claim: Claim, known: Mapping[str, set[str]], told: set[tuple[str, str]], log: FaultLog
) -> bool:
    """Whether every name exists. A wrong one is a fault once per file (`told`), where it is first used: the
    claims of a table page share theirs.
    """
    sound = True
    for field in ("gpu", "other_gpu", "model", "quant", "other_quant", "framework", "other_framework"):
        kind, value = field.removeprefix("other_"), getattr(claim, field)
        if value is not None and kind in known and value not in known[kind]:
            sound = False
            if (kind, value) not in told:
                log.add(path, f"{claim.claim}.{field}", value, unknown_name(value, known[kind], kind))
            told.add((kind, value))
    return sound
