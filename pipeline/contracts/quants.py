"""Reads `sources/quants/`: weight formats, and the measured sizes of files whose recipe is not published.

A record stores what its source says: block layout, types of embedding and head, density of the reference
file. The densities that the memory estimate needs follow from these and are computed here, so that no derived
number is written down by hand. How many bytes a model takes is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field, StringConstraints, model_validator

from pipeline.contracts.checkpoint_recipes import read_checkpoint_recipes
from pipeline.contracts.citing import CitationUse, check_cited
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.gguf_mixes import read_gguf_mixes
from pipeline.contracts.reading import path_id, read_rows, read_toml, source_files, validate
from pipeline.contracts.strict import Count, Positive, PositiveInt, PositiveLong, Strict, StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "quants"
MEASURED_FILE = "quants/unsloth_dynamic.csv"
UNKNOWN_TYPE = "unknown"

# The reference model of the file-mix densities, Llama-3.1-8B: parameters of the file, and of embedding and
# head, which are two tensors of 128256 x 4096. Norms (266,240 parameters, kept in F32) count as body.
REFERENCE_PARAMS = 8_030_261_248
REFERENCE_EMBEDDING_PARAMS = 128_256 * 4_096
REFERENCE_HEAD_PARAMS = 128_256 * 4_096
# A mix stays near its base type: IQ3_XS lies 5 % below, Q3_K_L 22 % above.
_BODY_OVER_BASE = (0.9, 1.5)

QuantId = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9][a-z0-9.+-]*/[A-Za-z0-9][A-Za-z0-9._+-]*|unknown)$")
]
QuantClass = Literal[
    "16bit", "bf16", "8bit", "q6", "q5", "q4k", "q4_0", "q23k", "iq", "int4", "fp4", "mxfp4", "mlx4", "exl2",
    "exl3",
    "ternary", "other",
]  # fmt: skip


class QuantRecord(Strict):
    """One `[[quant]]` of a family's file.

    A tensor type has a block layout or `exact_bpw`. A file mix has the density of the reference file, the
    target of its converter, measured files, or only a base type. Types left out are the format's own;
    `unknown` says that nobody read how the tensor is stored. with_imatrix: such files are usually made with
    an importance matrix.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._+-]*$")]
    title: Text
    level: Literal["tensor-type", "file-mix", "layout"]
    quant_class: QuantClass
    compute_dtype: Literal["fp16", "bf16", "fp8", "int8", "fp4"]
    scope: Literal["all", "experts"] = "all"
    block_size: PositiveInt | None = None
    block_bytes: Positive | None = None
    row_overhead_bytes: Count | None = None
    exact_bpw: Annotated[float, Field(gt=0, le=32)] | None = None
    target_bpw: Annotated[float, Field(gt=0, le=32)] | None = None
    reference_bpw: Annotated[float, Field(gt=0, le=33)] | None = None
    static_reference_bpw: Annotated[float, Field(gt=0, le=33)] | None = None
    is_measured: Literal[True] | None = None
    with_imatrix: bool | None = None
    base_type: QuantId | None = None
    embedding_type: QuantId | None = None
    head_type: QuantId | None = None
    rest_type: QuantId | None = None
    confidence: Literal["high", "medium", "low"]
    note: Text | None = None
    cite: dict[str, list[str]]

    @model_validator(mode="after")
    def _one_density(self) -> QuantRecord:
        if (self.block_size is None) != (self.block_bytes is None):
            raise ValueError("block_size and block_bytes are given together")
        if (self.scope == "experts") != (self.rest_type is not None):
            raise ValueError("scope experts and rest_type are given together")
        if self.level == "tensor-type":
            if (self.block_size is None) == (self.exact_bpw is None):
                raise ValueError("a tensor-type has block_size and block_bytes, or exact_bpw")
            self._refuse("reference_bpw", "static_reference_bpw", "target_bpw", "is_measured", "base_type")
        elif self.level == "layout":
            self._refuse("block_size", "exact_bpw", "reference_bpw", "static_reference_bpw", "target_bpw")
        else:
            self._refuse("block_size", "exact_bpw", "row_overhead_bytes")
            if (
                sum(value is not None for value in (self.reference_bpw, self.target_bpw, self.is_measured))
                > 1
            ):
                raise ValueError("a file-mix has one of reference_bpw, target_bpw and is_measured")
            if self.reference_bpw is not None and not (
                self.base_type and self.embedding_type and self.head_type
            ):
                raise ValueError("reference_bpw needs base_type, embedding_type and head_type")
            if self.scope == "experts" and self.base_type is None:
                raise ValueError("a file-mix with scope experts needs base_type")
        if not self.cite:
            raise ValueError("cite is empty: say where the facts are from")
        return self

    def _refuse(self, *names: str) -> None:
        given = [name for name in names if getattr(self, name) is not None]
        if given:
            raise ValueError(f"a {self.level} has no {', '.join(given)}")

    @property
    def tensor_bpw(self) -> float | None:
        """Density of one tensor of this type, without row overhead; None for a mix."""
        if self.block_size is not None and self.block_bytes is not None:
            return 8 * self.block_bytes / self.block_size
        return self.exact_bpw


class MeasuredFile(StrictRow):
    """A row of `unsloth_dynamic.csv`."""

    repo: Text | None = None
    file: Text
    quant: QuantId
    file_bytes: PositiveLong
    precision: Literal["exact", "0.05 MiB", "0.05 GiB"]
    n_params: PositiveLong
    params_source: Literal["config", "source"]
    citation: Text
    locator: Text | None = None

    @property
    def measured_bpw(self) -> float:
        """Bits per weight of the whole file."""
        return 8 * self.file_bytes / self.n_params


def read_quants(root: Path, log: FaultLog, use: CitationUse) -> dict[str, pl.DataFrame]:
    """The tables `quants`, `unsloth_dynamic`, those of the GGUF mixes and of the checkpoint recipes; faults
    go to `log`, citations to `use`.

    Faulty records are left out. Both frames are sorted by key and have the columns of their dictionary.
    """
    records = _read_records(root, log, use)
    measured = _read_measured(root, records, log, use)
    densities: dict[str, list[float]] = {}
    for row in measured:
        densities.setdefault(row.quant, []).append(row.measured_bpw)
    known = {quant: record for quant, (_, record) in records.items()}
    quants = [
        _quant_row(quant, record, known, densities.get(quant, []), path, log)
        for quant, (path, record) in sorted(records.items())
    ]
    files = [
        {**row.model_dump(), "measured_bpw": row.measured_bpw}
        for row in sorted(measured, key=lambda row: (row.quant, row.file))
    ]
    return {
        "quants": _frame("quants", quants),
        "unsloth_dynamic": _frame("unsloth_dynamic", files),
        **read_gguf_mixes(root, log, use, {*records, *log.refused}),
        **read_checkpoint_recipes(root, log, use, {*records, *log.refused}),
    }


def body_bpw_of_reference(reference_bpw: float, embedding_bpw: float, head_bpw: float) -> float:
    """Density of the body when a whole Llama-3.1-8B file has `reference_bpw`.

    The file's bits less those of embedding and head, over the remaining parameters.
    """
    body_bits = (
        reference_bpw * REFERENCE_PARAMS
        - embedding_bpw * REFERENCE_EMBEDDING_PARAMS
        - head_bpw * REFERENCE_HEAD_PARAMS
    )
    return body_bits / (REFERENCE_PARAMS - REFERENCE_EMBEDDING_PARAMS - REFERENCE_HEAD_PARAMS)


def _read_records(root: Path, log: FaultLog, use: CitationUse) -> dict[str, tuple[Path, QuantRecord]]:
    records: dict[str, tuple[Path, QuantRecord]] = {}
    for path in source_files(root, FOLDER, ".toml"):
        family = path_id(path, root / FOLDER, log)
        document = read_toml(path, log)
        if family is None or document is None:
            named = re.findall(rb'^name = "([^"]+)"', path.read_bytes(), re.MULTILINE)
            log.refused |= {f"{path.stem}/{name.decode(errors='replace')}" for name in named}
            continue
        for name in sorted(set(document) - {"quant"}):
            log.add(path, name, None, "unknown field: a family's file holds [[quant]] records only")
        records_here = document.get("quant", [])
        if not isinstance(records_here, list):
            log.add(path, "quant", None, "must be a list of tables: write [[quant]], not [quant]")
            continue
        for fields in records_here:
            record = validate(path, QuantRecord, fields, log)
            if record is None:
                log.refused.add(f"{family}/{fields.get('name') if isinstance(fields, dict) else None}")
                continue
            quant = f"{family}/{record.name}"
            if quant in records:
                log.add(path, "name", record.name, "is given twice in this family")
                continue
            stated = {name: value for name, value in fields.items() if name != "cite"}
            check_cited(path, "quants", quant, stated, record.cite, log, use)
            records[quant] = (path, record)
    return records


def _read_measured(
    root: Path, records: Mapping[str, object], log: FaultLog, use: CitationUse
) -> list[MeasuredFile]:
    path = root / MEASURED_FILE
    if not path.is_file():
        return []
    rows: dict[tuple[str, str], MeasuredFile] = {}
    for line, row in read_rows(path, MeasuredFile, log):
        if row.quant not in records and row.quant not in log.refused:
            log.add(path, "quant", row.quant, unknown_name(row.quant, records, "quant"), line)
            continue
        if (row.quant, row.file) in rows:
            log.add(path, "file", row.file, "this quant of this file is given twice", line)
            continue
        if not 0.5 <= row.measured_bpw <= 32:
            log.add(path, "file_bytes", row.file_bytes, f"gives {row.measured_bpw:.2f} bits per weight", line)
            continue
        use.note(row.citation, path, line)
        use.note_fact(
            "unsloth_dynamic", f"{row.quant} {row.file}", "file_bytes", row.file_bytes, row.citation
        )
        rows[row.quant, row.file] = row
    return list(rows.values())


def _quant_row(
    quant: str,
    record: QuantRecord,
    known: Mapping[str, QuantRecord],
    measured: list[float],
    path: Path,
    log: FaultLog,
) -> dict[str, Any]:
    types = {}
    for name in ("base_type", "embedding_type", "head_type", "rest_type"):
        types[name] = _type_bpw(getattr(record, name), name, record, known, path, log)
    row: dict[str, Any] = {
        "quant": quant, "name": record.title, "family": quant.split("/")[0], "level": record.level,
        "quant_class": record.quant_class, "scope": record.scope, "rest_bpw": types["rest_type"],
        "exact_bpw": record.tensor_bpw, "reference_bpw": record.reference_bpw,
        "static_reference_bpw": record.static_reference_bpw, "with_imatrix": record.with_imatrix,
        "block_size": record.block_size,
        "block_bytes": record.block_bytes, "row_overhead_bytes": record.row_overhead_bytes,
        "compute_dtype": record.compute_dtype, "confidence": record.confidence, "note": record.note,
        "citation": _density_citation(record), "body_bpw": None, "density_basis": None,
        "embedding_bpw": types["embedding_type"], "head_bpw": types["head_type"],
    }  # fmt: skip
    if record.tensor_bpw is not None:
        row |= {"body_bpw": record.tensor_bpw, "density_basis": "exact"}
    elif record.target_bpw is not None:
        row |= {"body_bpw": record.target_bpw, "density_basis": "rule"}
    elif record.is_measured:
        row |= _measured_density(record, measured, path, log)
    elif record.reference_bpw is not None:
        body = _reference_body(record, types, path, log)
        row |= {"body_bpw": body, "density_basis": None if body is None else "reference"}
    elif types["base_type"] is not None:
        row |= {"body_bpw": types["base_type"], "density_basis": "rule"}
    for column in ("embedding_bpw", "head_bpw"):
        if getattr(record, column.replace("_bpw", "_type")) is None:
            row[column] = row["body_bpw"]
    return row


def _reference_body(
    record: QuantRecord, types: Mapping[str, float | None], path: Path, log: FaultLog
) -> float | None:
    embedding, head, base = types["embedding_type"], types["head_type"], types["base_type"]
    if record.reference_bpw is None or embedding is None or head is None or base is None:
        return None
    body = body_bpw_of_reference(record.reference_bpw, embedding, head)
    low, high = _BODY_OVER_BASE
    if not low * base <= body <= high * base:
        log.add(path, f"{record.name}.reference_bpw", record.reference_bpw,
                f"leaves {body:.3f} bpw for the body, far from its base type's {base:g}")  # fmt: skip
        return None
    return body


def _measured_density(
    record: QuantRecord, measured: list[float], path: Path, log: FaultLog
) -> dict[str, Any]:
    if not measured:
        log.add(path, f"{record.name}.is_measured", True, f"{MEASURED_FILE} has no row of this quant")
        return {}
    middle = median(measured)
    spread = f"median of {len(measured)} measured file(s), {min(measured):.2f} to {max(measured):.2f} bpw"
    return {
        "body_bpw": middle, "embedding_bpw": middle, "head_bpw": middle, "reference_bpw": middle,
        "density_basis": "measured", "note": f"{record.note}; {spread}" if record.note else spread,
    }  # fmt: skip


def _type_bpw(
    type_id: str | None,
    field: str,
    record: QuantRecord,
    known: Mapping[str, QuantRecord],
    path: Path,
    log: FaultLog,
) -> float | None:
    """Density of the format a record names for a kind of tensor; None where it is not given or not known."""
    if type_id is None or type_id == UNKNOWN_TYPE:
        return None
    if type_id in log.refused:
        return None
    if type_id not in known:
        log.add(path, f"{record.name}.{field}", type_id, unknown_name(type_id, known, "quant"))
        return None
    found = known[type_id].tensor_bpw or known[type_id].target_bpw
    if found is None:
        log.add(path, f"{record.name}.{field}", type_id, "must be a format with a density of its own")
    return found


def _density_citation(record: QuantRecord) -> str:
    """The citation of the field that decides the density, else the first one."""
    for field in ("block_bytes", "exact_bpw", "reference_bpw", "target_bpw", "is_measured", "base_type"):
        for citation, fields in record.cite.items():
            if field in fields:
                return citation
    return next(iter(record.cite))


def _frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_schema(table)
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)
