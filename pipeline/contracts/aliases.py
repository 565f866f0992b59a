"""Reads `sources/aliases/*.csv` and `sources/anchors/readings.csv`: which id a name as written stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import StrictRow, Text

FOLDER = "aliases"
READINGS = "anchors/readings.csv"
Confidence = Literal["high", "medium", "low"]
Relation = Literal["same", "finetune-same-config", "quantised-variant", "base-instruct", "none"]

ALIAS_SCHEMA: dict[str, type[pl.DataType]] = {
    "kind": pl.String, "name": pl.String, "used_in": pl.String, "context": pl.String,
    "framework_name": pl.String,
    "id": pl.String, "value_id": pl.String, "relation": pl.String, "memory_stated": pl.Boolean,
    "trait": pl.String,
    "confidence": pl.String, "reason": pl.String,
}  # fmt: skip
READING_KEYS = ("source", "framework_name", "framework_version", "model_name", "quant_name", "gpu_name")
READING_SCHEMA: dict[str, type[pl.DataType]] = {
    "set": pl.String, "publisher": pl.String, "kind": pl.String, "name": pl.String,
    **dict.fromkeys(READING_KEYS, pl.String), "id": pl.String, "confidence": pl.String, "reason": pl.String,
    "citation": pl.String,
}  # fmt: skip
_USED_IN = {"single_stream": "decode", "decode": "decode", "serving": "serving", "memory": "memory",
            "file_sizes": "file_sizes", "weight_file": "file_sizes", "reported": "claims",
            "claims": "claims"}  # fmt: skip


class GpuAlias(StrictRow):
    """A device name; without `gpu` the name is known to stand for no single accelerator of ours."""

    alias: Text | None = None
    context: Text | None = None
    gpu: Text | None = None
    confidence: Confidence
    reason: Text | None = None
    memory_stated: bool | None = None


class ModelAlias(StrictRow):
    """A model or file name; `relation` says how the named weights relate to the checkpoint."""

    alias: Text | None = None
    context: Text | None = None
    model: Text | None = None
    relation: Relation
    confidence: Confidence
    reason: Text | None = None


class QuantAlias(StrictRow):
    """A precision label as one framework writes it."""

    label: Text | None = None
    context: Text | None = None
    framework_as_written: Text | None = None
    quant: Text | None = None
    confidence: Confidence
    reason: Text | None = None


class FrameworkAlias(StrictRow):
    """An engine name; `kind` tells engines from free text."""

    alias: Text | None = None
    context: Text | None = None
    framework: Text | None = None
    kind: Text
    confidence: Confidence
    reason: Text | None = None


class KvDtypeAlias(StrictRow):
    """A KV cache label of one framework; `value_kv_dtype` where values are stored otherwise than keys."""

    label: Text
    framework: Text
    kv_dtype: Text | None = None
    value_kv_dtype: Text | None = None
    trait: Literal["exotic", "asymmetric", "speculation", "mode"] | None = None
    confidence: Confidence
    reason: Text | None = None


class Reading(StrictRow):
    """What a name (or a missing one) means in some rows of one publisher; it holds where all keys given
    agree.
    """

    set: Literal["decode", "serving"]
    publisher: Text
    kind: Literal["gpu", "model", "quant", "framework", "kv_dtype"]
    name: Text | None = None
    source: Text | None = None
    framework_name: Text | None = None
    framework_version: Text | None = None
    model_name: Text | None = None
    quant_name: Text | None = None
    gpu_name: Text | None = None
    id: Text
    confidence: Confidence
    reason: Annotated[str, Field(min_length=1)]
    citation: Text


def read_aliases(root: Path, log: FaultLog, ids: Mapping[str, Iterable[str]]) -> pl.DataFrame:
    """All aliases in one frame (`ALIAS_SCHEMA`), one row per name, kind and place where it is used.

    `ids` gives the known ids by kind (gpu, model, quant, framework; kv_dtype as "framework kv_dtype"). An
    alias that points to another id is a fault that names the nearest one; kinds that `ids` leaves out are not
    checked.
    """
    rows: list[dict[str, object]] = []
    for kind, file, model in (
        ("gpu", "gpus.csv", GpuAlias),
        ("model", "models.csv", ModelAlias),
        ("quant", "quants.csv", QuantAlias),
        ("framework", "frameworks.csv", FrameworkAlias),
        ("kv_dtype", "kv_dtypes.csv", KvDtypeAlias),
    ):
        path = root / FOLDER / file
        if not path.is_file():
            continue
        known = set(ids[kind]) if kind in ids else None
        for line, row in read_rows(path, model, log):
            alias = _alias(kind, row.model_dump())
            target = f"{alias['framework_name']} {alias['id']}" if kind == "kv_dtype" else str(alias["id"])
            if known is not None and alias["id"] is not None and target not in known:
                log.add(path, kind, target, unknown_name(target, known, kind), line)
                continue
            rows.append(alias)
    return pl.DataFrame(rows, schema=ALIAS_SCHEMA, orient="row")


def read_readings(
    root: Path, log: FaultLog, use: CitationUse, ids: Mapping[str, Iterable[str]]
) -> pl.DataFrame:
    """All readings (`READING_SCHEMA`); ids are checked as in `read_aliases`, KV cache ids are not."""
    path = root / READINGS
    rows: list[dict[str, object]] = []
    if path.is_file():
        for line, row in read_rows(path, Reading, log):
            use.note(row.citation, path, line)
            known = set(ids[row.kind]) if row.kind in ids and row.kind != "kv_dtype" else None
            if known is not None and row.id not in known:
                log.add(path, "id", row.id, unknown_name(row.id, known, row.kind), line)
                continue
            rows.append(row.model_dump())
    return pl.DataFrame(rows, schema=READING_SCHEMA, orient="row")


def nearest_ids(names: pl.DataFrame, ids: Mapping[str, Iterable[str]]) -> pl.DataFrame:
    """Adds `nearest` to a frame with `kind` and `name`: the known id of that kind that is spelled most alike,
    if any.

    The organisation or family in front of the last `/` is left aside in the comparison.
    """
    by_kind = {
        kind: {_last_part(value).lower(): value for value in sorted(values)} for kind, values in ids.items()
    }
    found = [_nearest(name, by_kind.get(kind, {})) for kind, name in names.select("kind", "name").iter_rows()]
    return names.with_columns(pl.Series("nearest", found, dtype=pl.String))


def _nearest(name: str, known: Mapping[str, str]) -> str | None:
    close = difflib.get_close_matches(_last_part(name).lower(), list(known), n=1, cutoff=0.5)
    return known[close[0]] if close else None


def _last_part(value: str) -> str:
    return value.rsplit("/", 1)[-1]


def _alias(kind: str, cells: Mapping[str, object]) -> dict[str, object]:
    context = cells.get("context")
    return {
        "kind": kind,
        "name": cells.get("alias", cells.get("label")),
        "used_in": _used_in(str(context or "")),
        "context": context,
        "framework_name": cells.get("framework_as_written")
        if kind == "quant"
        else _kv_framework(kind, cells),
        "id": cells[{"gpu": "gpu", "model": "model", "quant": "quant"}.get(kind, kind)],
        "value_id": cells.get("value_kv_dtype"),
        "relation": cells.get("relation"),
        "memory_stated": cells.get("memory_stated"),
        "trait": cells.get("trait"),
        "confidence": cells["confidence"],
        "reason": cells.get("reason"),
    }


def _kv_framework(kind: str, cells: Mapping[str, object]) -> object:
    return cells["framework"] if kind == "kv_dtype" else None


def _used_in(context: str) -> str:
    """Which rows an alias was made for; `any` when its context names none of them."""
    for word, used_in in _USED_IN.items():
        if word in context:
            return used_in
    return "any"
