"""Reads `sources/gpus/<vendor>/<gpu>.toml`: accelerators with one memory size and one bandwidth bin each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from estimator.usable_memory import RULES, usable_memory
from pipeline.contracts.capacity_rules import read_capacity_rules
from pipeline.contracts.citing import CitationUse, check_cited, check_uncited
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.gpu_checks import CHECKS, RATES, UNIT_CHECKS, Gpu, breaches
from pipeline.contracts.reading import check_stated_id, path_id, read_toml, source_files, validate
from pipeline.contracts.usable_memory import read_usable_memory
from warehouse.dictionary import conform

FOLDER = "gpus"
# How many identical ones the cube puts together: a full server, a large PC, or the one there is.
N_GPUS_MAX = {
    "datacenter": 8, "npu": 8, "consumer": 4, "workstation": 4, "laptop": 1, "apple": 1, "edge": 1, "cpu": 1,
}  # fmt: skip
_GPU_ID = re.compile(r"^[a-z0-9][a-z0-9.-]*$")


def read_gpus(root: Path, log: FaultLog, use: CitationUse) -> dict[str, pl.DataFrame]:
    """The tables `gpus` (usable memory included), and what it follows from: readings and rules."""
    records = _read_records(root, log, use)
    memory_gib = {gpu: _sound_memory(gpu, vendor, one) for gpu, (vendor, one) in records.items()}
    memory_gib |= dict.fromkeys(log.refused - set(records))
    readings = read_usable_memory(root, log, use, memory_gib)
    rows = [_row(gpu, vendor, record) for gpu, (vendor, record) in records.items()]
    facts = pl.DataFrame(rows, schema=_RECORD_SCHEMA, orient="row").with_columns(
        (pl.col("memory_bus_bits") * pl.col("memory_data_rate_gbit_s") / 8).alias("bandwidth_arithmetic_gb_s")
    )
    rules = read_capacity_rules(root, log, use)
    usable = usable_memory(facts, readings, _values(rules))
    gpus = facts.join(usable, on="gpu", how="left", validate="1:1")
    return {"gpus": conform(gpus, "gpus").sort("gpu"), "usable_memory": readings,
            "capacity_rules": rules}  # fmt: skip


def _values(rules: pl.DataFrame) -> dict[str, float]:
    """The rules by name; a missing one has its own fault, and 1 stands for it until it is mended."""
    return dict.fromkeys(RULES, 1.0) | dict(rules.select("rule", "value").iter_rows())


def _sound_memory(gpu: str, vendor: str, record: Gpu) -> float | None:
    """The memory that readings can be compared with; a wrong one has its own fault."""
    return None if {"memory_unit", "id_memory"} & set(breaches(gpu, vendor, record)) else record.memory_gib


def _read_records(root: Path, log: FaultLog, use: CitationUse) -> dict[str, tuple[str, Gpu]]:
    folder = root / FOLDER
    records: dict[str, tuple[str, Gpu]] = {}
    first_path: dict[str, Path] = {}
    for path in source_files(root, FOLDER, ".toml"):
        relative = path_id(path, folder, log)
        document = read_toml(path, log)
        log.refused.add(path.stem)  # until it is sound
        if relative is None or document is None:
            continue
        vendor, _, gpu = relative.partition("/")
        if not _GPU_ID.match(gpu) or not _GPU_ID.match(vendor):
            allowed = "must be gpus/<vendor>/<gpu>.toml; ids have lower-case letters, digits, '.' and '-'"
            log.add(path, "path", relative, allowed)
            continue
        if gpu.lower() in first_path:
            log.add(path, "id", gpu, f"this gpu exists already: {log.relative(first_path[gpu.lower()])}")
            continue
        first_path[gpu.lower()] = path
        record = validate(path, Gpu, document, log)
        if record is None:
            _check_numbers(path, gpu, vendor, document, log)
            continue
        check_stated_id(path, record.id, gpu, log)
        _check_record(path, gpu, vendor, record, log)
        check_cited(path, "gpus", gpu, _facts_of(record), record.cite, log, use)
        records[gpu] = (vendor, record)
        log.refused.discard(gpu)
    return records


def _check_numbers(path: Path, gpu: str, vendor: str, document: Mapping[str, Any], log: FaultLog) -> None:
    """Units and citations of the sound numbers of a record refused for other fields: all is said at once."""
    numbers = {
        name: value
        for name, value in document.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    }
    cite = document.get("cite")
    if isinstance(cite, Mapping):
        cited = [name for names in cite.values() if isinstance(names, list) for name in names]
        facts = {
            name: value for name, value in numbers.items() if name in Gpu.model_fields.keys() - _NOT_FACTS
        }
        check_uncited(path, facts, cited, log)
    rest = dict.fromkeys(Gpu.model_fields, None) | {"memory_type": str(document.get("memory_type", ""))}
    sound = Gpu.model_construct(None, **rest | numbers)
    excepted = document.get("exceptions")
    for name in UNIT_CHECKS:
        if isinstance(excepted, Mapping) and name in excepted:
            continue
        breach = CHECKS[name](gpu, vendor, sound)
        if breach is not None:
            log.add(path, breach.field, breach.value, f"{breach.allowed} (check {name})")


def _check_record(path: Path, gpu: str, vendor: str, record: Gpu, log: FaultLog) -> None:
    """Checks that physics or usage demand; those in CHECKS can be excepted by name, the others cannot."""
    found = breaches(gpu, vendor, record)
    for name, breach in found.items():
        if name not in record.exceptions:
            log.add(path, breach.field, breach.value, f"{breach.allowed} (check {name})")
    for name in record.exceptions:
        if name not in CHECKS:
            log.add(path, f"exceptions.{name}", None, unknown_name(name, CHECKS, "check"))
        elif name not in found:
            log.add(path, f"exceptions.{name}", None, "the record passes this check: remove the exception")
    for field in record.unverified_fields:
        if field not in Gpu.model_fields:
            log.add(path, "unverified_fields", field, unknown_name(field, Gpu.model_fields, "field"))
        elif getattr(record, field) is None:
            log.add(path, "unverified_fields", field, "names a field that is not set")
    if record.link_gb_s is not None and record.link in {None, "none"}:
        log.add(path, "link_gb_s", record.link_gb_s, "has no link: name it in link, or leave this out")
    _check_publishing(path, record, log)


def _check_publishing(path: Path, record: Gpu, log: FaultLog) -> None:
    """What is not sure or not complete enough must say so in `unpublished_reason`."""
    wants = {
        "its confidence is low": record.confidence == "low",
        "it is a CPU": record.category == "cpu",
        "memory_gib is unknown": record.memory_gib is None,
        "bandwidth_gb_s is unknown": record.bandwidth_gb_s is None,
    }
    reasons = [reason for reason, holds in wants.items() if holds]
    if reasons and record.unpublished_reason is None:
        allowed = f"must be given: {' and '.join(reasons)}, so it is not published"
        log.add(path, "unpublished_reason", None, allowed)


# What says how the record is laid out or judged: not facts with a source of their own.
_NOT_FACTS = {
    "id", "cite", "exceptions", "unverified_fields", "note", "unpublished_reason", "confidence",
    "devices_per_board",
}  # fmt: skip
_NOT_COLUMNS = {"id", "cite", "exceptions"}


def _facts_of(record: Gpu) -> dict[str, object]:
    fields = record.model_dump(exclude=_NOT_FACTS)
    return {name: value for name, value in fields.items() if value is not None}


def _row(gpu: str, vendor: str, record: Gpu) -> dict[str, object]:
    return record.model_dump(exclude=_NOT_COLUMNS) | {
        "gpu": gpu,
        "vendor": vendor,
        "n_gpus_max": N_GPUS_MAX[record.category],
        "published": record.unpublished_reason is None,
        "unverified_fields": ";".join(record.unverified_fields) or None,
        "citation": _main_citation(record),
    }


def _main_citation(record: Gpu) -> str:
    """The citation of the bandwidth, else of the memory, else the first."""
    for field in ("bandwidth_gb_s", "memory_gib"):
        for citation, fields in record.cite.items():
            if field in fields:
                return citation
    return next(iter(record.cite))


_TEXT = [
    "gpu", "name", "vendor", "architecture", "family", "category", "release_date", "confidence",
    "memory_type", "compute_capability", "link", "unpublished_reason", "unverified_fields", "note",
    "citation",
]  # fmt: skip
_WHOLE = ["memory_bus_bits", "devices_per_board", "compute_units", "pcie_gen", "pcie_lanes", "n_gpus_max"]
_FRACTIONS = [
    "memory_gib", "memory_data_rate_gbit_s", "bandwidth_gb_s", "boost_clock_mhz", "l2_cache_mib", "link_gb_s",
    "tdp_w", *RATES,
]  # fmt: skip
_RECORD_SCHEMA: dict[str, pl.DataType] = (
    {name: pl.String() for name in _TEXT}
    | {name: pl.Int32() for name in _WHOLE}
    | {name: pl.Float64() for name in _FRACTIONS}
    | {name: pl.Boolean() for name in ("unified_memory", "published")}
)
