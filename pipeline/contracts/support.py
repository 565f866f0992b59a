"""Reads `sources/support/`: rules that say what runs where. Applying them is `estimator/support.py`'s.

A rule names a framework and any of backend, vendor, range of compute capability and architectures; what it
leaves empty is any. The most specific rule that matches decides, and where no rule matches the answer is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import model_validator

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.frameworks import Backend
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import PositiveShort, StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "support"
Supported = Literal["yes", "partial", "no", "unknown"]
Confidence = Literal["high", "medium", "low"]
# Vendors of accelerators as the gpu table names them; `cpu` stands for processors of any vendor.
VENDORS = (
    "nvidia", "amd", "intel", "apple", "huawei", "google", "aws", "qualcomm", "moore-threads", "cambricon",
    "hygon",
    "kunlunxin", "groq", "metax", "biren", "iluvatar", "sambanova", "enflame", "cpu",
)  # fmt: skip


def _check_range(low: int | None, high: int | None, glob: str | None) -> None:
    if low is not None and high is not None and low > high:
        raise ValueError(f"arch_min {low} is above arch_max {high}")
    if glob is not None and (low is not None or high is not None):
        raise ValueError("arch_glob stands in place of arch_min and arch_max")


class HardwareRule(StrictRow):
    """A row of `hardware.csv`."""

    framework: Text
    backend: Backend | None = None
    vendor: Text | None = None
    arch_min: PositiveShort | None = None
    arch_max: PositiveShort | None = None
    arch_glob: Text | None = None
    supported: Supported
    reason: Text | None = None
    confidence: Confidence
    citation: Text
    locator: Text | None = None

    @model_validator(mode="after")
    def _range(self) -> HardwareRule:
        _check_range(self.arch_min, self.arch_max, self.arch_glob)
        return self


class FormatRule(StrictRow):
    """A row of `formats.csv`."""

    framework: Text
    backend: Backend | None = None
    quant_glob: Text
    vendor: Text | None = None
    arch_min: PositiveShort | None = None
    arch_max: PositiveShort | None = None
    arch_glob: Text | None = None
    supported: Supported
    arithmetic: Literal["native", "weight_only"] | None = None
    reason: Text | None = None
    confidence: Confidence
    citation: Text
    locator: Text | None = None

    @model_validator(mode="after")
    def _range(self) -> FormatRule:
        _check_range(self.arch_min, self.arch_max, self.arch_glob)
        return self


class KvDtypeRule(StrictRow):
    """A row of `kv_dtypes.csv`."""

    framework: Text
    backend: Backend | None = None
    kv_glob: Text
    vendor: Text | None = None
    arch_min: PositiveShort | None = None
    arch_max: PositiveShort | None = None
    arch_glob: Text | None = None
    supported: Supported
    reason: Text | None = None
    confidence: Confidence
    citation: Text
    locator: Text | None = None

    @model_validator(mode="after")
    def _range(self) -> KvDtypeRule:
        _check_range(self.arch_min, self.arch_max, self.arch_glob)
        return self


class ArchitectureRule(StrictRow):
    """A row of `architectures.csv`."""

    framework: Text
    match_key: Literal["architecture", "model_type"]
    architecture: Text | None = None
    model_type: Text | None = None
    kind: Literal[
        "text-generation", "multimodal", "transformers-backend", "plugin", "removed", "projector-only",
        "speculative-draft", "embedding", "classification", "reward", "other",
    ]  # fmt: skip
    supported: Supported
    arch_min: PositiveShort | None = None
    since_version: Text | None = None
    note: Text | None = None
    confidence: Confidence
    citation: Text
    locator: Text | None = None

    @model_validator(mode="after")
    def _key_is_given(self) -> ArchitectureRule:
        if getattr(self, self.match_key) is None:
            raise ValueError(f"match_key is {self.match_key}, but that column is empty")
        return self


class ParallelismRule(StrictRow):
    """A row of `parallelism.csv`."""

    framework: Text
    parallel_mode: Literal[
        "tensor",
        "layer",
        "pipeline",
        "expert",
        "data",
        "context",
        "row",
        "graph",
        "network",
        "offload",
        "none",
    ]
    quant_glob: Text | None = None
    vendor: Text | None = None
    n_gpus_max: PositiveShort | None = None
    heads_divide: bool | None = None
    kv_heads: Literal["divide", "divide_or_replicate"] | None = None
    ffn_divides: bool | None = None
    shard_multiple: PositiveShort | None = None
    supported: Supported
    reason: Text | None = None
    confidence: Confidence
    citation: Text
    locator: Text | None = None


_FILES: dict[str, type[StrictRow]] = {
    "hardware": HardwareRule,
    "formats": FormatRule,
    "kv_dtypes": KvDtypeRule,
    "architectures": ArchitectureRule,
    "parallelism": ParallelismRule,
}


def read_support(
    root: Path,
    log: FaultLog,
    use: CitationUse,
    frameworks: Collection[str],
    quants: Collection[str],
    kv_dtypes: Collection[str],
) -> dict[str, pl.DataFrame]:
    """The five `support_*` tables in the order of their files; faults go to `log`, citations to `use`.

    The known ids are those of the tables `frameworks`, `quants` and of the cache formats of any framework: a
    glob that matches none of them is a fault.
    """
    globs: dict[str, Collection[str]] = {"quant_glob": quants, "kv_glob": kv_dtypes}
    return {
        f"support_{name}": _read_rules(root, name, model, log, use, frameworks, globs)
        for name, model in _FILES.items()
    }


def _read_rules(
    root: Path,
    name: str,
    model: type[StrictRow],
    log: FaultLog,
    use: CitationUse,
    frameworks: Collection[str],
    globs: dict[str, Collection[str]],
) -> pl.DataFrame:
    path = root / FOLDER / f"{name}.csv"
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[Any, ...], int] = {}
    if path.is_file():
        for line, row in read_rows(path, model, log):
            fields = row.model_dump()

            def fault(field: str, allowed: str, fields: dict[str, Any] = fields, line: int = line) -> None:
                log.add(path, field, fields[field], allowed, line)

            if _is_known(fields, frameworks, globs, fault) and _is_new(fields, seen, line, fault):
                use.note(fields["citation"], path, line)
                rows.append({"rule": f"{name}.csv:{line}", **fields})
    else:
        log.add(path, "", None, "file is missing")
    schema = polars_schema(f"support_{name}")
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)


def _is_known(
    fields: dict[str, Any],
    frameworks: Collection[str],
    globs: dict[str, Collection[str]],
    fault: Callable[[str, str], None],
) -> bool:
    """Whether every name of the rule exists; a fault for each that does not."""
    known = True
    if fields["framework"] not in frameworks:
        fault("framework", unknown_name(fields["framework"], frameworks, "framework"))
        known = False
    if fields.get("vendor") is not None and fields["vendor"] not in VENDORS:
        fault("vendor", unknown_name(fields["vendor"], VENDORS, "vendor"))
        known = False
    for column, ids in globs.items():
        glob = fields.get(column)
        if glob is not None and not any(matches_glob(name, glob) for name in ids):
            fault(column, f"matches no known id{unknown_name(glob, ids, 'id').removeprefix('unknown id')}")
            known = False
    return known


def _is_new(
    fields: dict[str, Any], seen: dict[tuple[Any, ...], int], line: int, fault: Callable[[str, str], None]
) -> bool:
    """Whether no earlier rule has the same conditions."""
    answers = {"supported", "arithmetic", "reason", "confidence", "citation", "locator", "since_version"}
    conditions = tuple(value for name, value in fields.items() if name not in answers)
    if conditions in seen:
        fault("framework", f"same conditions as line {seen[conditions]}")
        return False
    seen[conditions] = line
    return True


def matches_glob(name: str, glob: str) -> bool:
    """Whether `name` has the form of `glob`, in which `*` stands for any letters; case does not matter."""
    parts = [part.lower() for part in glob.split("*")]
    text = name.lower()
    if len(parts) == 1:
        return text == parts[0]
    if (
        not text.startswith(parts[0])
        or not text.endswith(parts[-1])
        or len(text) < len(parts[0]) + len(parts[-1])
    ):
        return False
    text = text[len(parts[0]) : len(text) - len(parts[-1])]
    for part in parts[1:-1]:
        found = text.find(part)
        if found < 0:
            return False
        text = text[found + len(part) :]
    return True
