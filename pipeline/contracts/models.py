"""Reads `sources/models/<org>/<name>.json`: what a checkpoint's configuration and publisher say, each with
its source.

How configurations are read is decided in `hugging_face_config.py`, how parameters are counted in the
estimator.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from pipeline.contracts.architectures.config_fields import known_fields
from pipeline.contracts.architectures.traits import all_traits
from pipeline.contracts.citing import CitationUse, check_cited
from pipeline.contracts.faults import FaultLog, nearest, unknown_name
from pipeline.contracts.hugging_face_config import ModelShapes, interpret
from pipeline.contracts.model_tables import (
    STATED_SIZES,
    counted_layers,
    counted_models,
    layers_table,
    llama_cpp_layers_table,
    models_table,
    quantize_facts_table,
    tensors_table,
)
from pipeline.contracts.reading import check_stated_id, path_id, read_json, source_files, validate
from pipeline.contracts.strict import PositiveLong, Strict, Text
from warehouse.dictionary import polars_schema

FOLDER = "models"
LARGEST_SIZE = 2**31 - 1
SMALL_SHARE = 0.001
TOLERANCE = 1e-5  # counted and published totals may differ by this share without a stated reason
_NOT_FACTS = {"cite", "config", "filled", "corrections", "conflicts"}
_PLAUSIBLE_TOTAL = (1_000_000, 20_000_000_000_000)

RepoId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")]
Provenance = Literal[
    "verbatim-config", "derived-table", "library-default", "filled-and-counted", "completed", "partial"
]


def _iso_date(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("must be a date written YYYY-MM-DD")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a date written YYYY-MM-DD") from None


class ParamsDifference(Strict):
    """Why the published total is not what the configuration amounts to."""

    reason: Text
    certainty: Literal["stated", "plausible"]


class Correction(Strict):
    """A value of the configuration that replaces one an earlier source gave (`replaces` null: it gave
    none)."""

    field: Text
    replaces: bool | int | float | str | None
    reason: Text
    citation: Text


class Conflict(Strict):
    """Another source gives another value; ours is kept."""

    field: Text
    other: bool | int | float | str
    source: Text


class ModelRecord(Strict):
    """One checkpoint. `config`: the Hugging Face configuration as found, without what no estimate needs;
    `filled`: fields that it lacks and how they were found (`filled_reason`), laid over it; both are read
    under their Hugging Face names.
    """

    id: RepoId | None = None
    family: Text
    licence: Text | None = None
    release_date: Annotated[date, BeforeValidator(_iso_date)] | None = None
    total_params: Annotated[int, Field(ge=_PLAUSIBLE_TOTAL[0], le=_PLAUSIBLE_TOTAL[1])] | None = None
    active_params_published: PositiveLong | None = None
    provenance: Provenance
    confidence: Literal["high", "medium", "low"]
    config: dict[str, Any]
    filled: dict[str, Any] = Field(default_factory=dict)
    filled_reason: Text | None = None
    config_equals: RepoId | None = None
    variant_of: RepoId | None = None
    params_difference: ParamsDifference | None = None
    corrections: list[Correction] = Field(default_factory=list)
    conflicts: list[Conflict] = Field(default_factory=list)
    missing: list[Text] = Field(default_factory=list)
    unpublished_reason: Text | None = None
    note: Text | None = None
    cite: dict[str, list[str]]

    @model_validator(mode="after")
    def _consistent(self) -> ModelRecord:
        if bool(self.filled) != (self.filled_reason is not None):
            raise ValueError("filled and filled_reason are given together")
        twice = sorted(set(self.filled) & {name for name, value in self.config.items() if value is not None})
        if twice:
            raise ValueError(f"filled repeats config: {', '.join(twice)}")
        if self.params_difference is not None and self.total_params is None:
            raise ValueError("params_difference without total_params")
        return self


def read_models(root: Path, log: FaultLog, use: CitationUse) -> dict[str, pl.DataFrame]:
    """The tables `models`, `layers`, `llama_cpp_layers`, `tensors` and `quantize_facts` of all valid records,
    in the columns of their dictionaries.

    A faulty record is logged and left out of both. Faults: unknown fields, ids that differ only in case, a
    configuration that lacks a field the shapes need and does not list it under `missing`, an unknown
    architecture, a counted total more than 0.001 % off the published one without (or within that with)
    `params_difference`.
    """
    records = _read_records(root, log, use)
    shapes = _interpret_all(records, log)
    sound = {model for model in shapes if _check_shapes(*records[model], shapes[model], log)}
    log.refused |= set(records) - sound
    whole = {model: one for model, one in shapes.items() if model in sound}
    layers = counted_layers(whole)
    counted = counted_models(whole, layers)
    totals = dict(counted.select("model", pl.struct("computed_params", "mtp_params")).iter_rows())
    for model in sorted(sound & set(totals)):
        _check_total(*records[model], totals[model], log)
    rows = [_row(model, records[model][1], shapes[model]) for model in sorted(sound)]
    if not rows:
        return {
            name: pl.DataFrame(schema=polars_schema(name))
            for name in ("models", "layers", "llama_cpp_layers", "tensors", "quantize_facts")
        }
    return {
        "models": models_table(rows, counted),
        "layers": layers_table(layers),
        "llama_cpp_layers": llama_cpp_layers_table(whole, layers),
        "tensors": tensors_table(whole, layers),
        "quantize_facts": quantize_facts_table(whole, layers),
    }


def _read_records(root: Path, log: FaultLog, use: CitationUse) -> dict[str, tuple[Path, ModelRecord]]:
    folder = root / FOLDER
    records: dict[str, tuple[Path, ModelRecord]] = {}
    lowered: dict[str, str] = {}
    for path in source_files(root, FOLDER, ".json"):
        model, document = path_id(path, folder, log), read_json(path, log)
        if model is not None:
            log.refused.add(model)  # until it is sound
        if model is None or document is None:
            continue
        if model.count("/") != 1:
            log.add(path, "path", model, "must be models/<organisation>/<name>.json")
            continue
        record = validate(path, ModelRecord, document, log)
        if record is None or not check_stated_id(path, record.id, model, log):
            continue
        if model.lower() in lowered:
            log.add(path, "id", model, f"already given as '{lowered[model.lower()]}' (case does not count)")
            continue
        lowered[model.lower()] = model
        _check_cited(path, model, record, log, use)
        records[model] = (path, record)
        log.refused.discard(model)
    for model in list(records):
        if not _check_references(*records[model], records, log):
            del records[model]
            log.refused.add(model)
    return records


def _check_cited(path: Path, model: str, record: ModelRecord, log: FaultLog, use: CitationUse) -> None:
    fields = record.model_dump(exclude_none=True, exclude=_NOT_FACTS)
    fields["config"] = f"{len(record.config)} fields"  # one fact: the configuration is cited as a whole
    if record.filled:
        fields["filled"] = ", ".join(record.filled)
    check_cited(path, "models", model, fields, record.cite, log, use)
    listed = {name for names in record.cite.values() for name in names}
    for name in ("config", "filled"):
        if name in fields and name not in listed:
            log.add(path, name, None, "without a citation: list it under cite")
    for correction in record.corrections:
        use.note(correction.citation, path)


def _check_references(
    path: Path, record: ModelRecord, records: Mapping[str, tuple[Path, ModelRecord]], log: FaultLog
) -> bool:
    sound = True
    for field in ("config_equals", "variant_of"):
        value = getattr(record, field)
        if value is not None and value not in records and value not in log.refused:
            log.add(path, field, value, unknown_name(value, records, "model"))
            sound = False
    base = records.get(record.config_equals) if record.config_equals else None
    if base is not None and base[1].config_equals is not None:
        advice = f"must name '{base[1].config_equals}', which it equals itself"
        log.add(path, "config_equals", record.config_equals, advice)
        sound = False
    return sound


def _interpret_all(records: Mapping[str, tuple[Path, ModelRecord]], log: FaultLog) -> dict[str, ModelShapes]:
    shapes = {}
    for model, (path, record) in records.items():
        try:
            shapes[model] = interpret(_whole_config(record, records))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            log.add(
                path, "config", None, f"cannot be read as a configuration: {type(error).__name__} {error}"
            )
    return shapes


def _whole_config(record: ModelRecord, records: Mapping[str, tuple[Path, ModelRecord]]) -> dict[str, Any]:
    """The configuration to interpret: that of `config_equals`, this one and what was filled in, laid over
    each other.
    """
    own = {**{name: value for name, value in record.config.items() if value is not None}, **record.filled}
    base = records.get(record.config_equals) if record.config_equals else None
    return own if base is None else {**base[1].config, **base[1].filled, **own}


def _check_shapes(path: Path, record: ModelRecord, shapes: ModelShapes, log: FaultLog) -> bool:
    """Whether the record says itself what its configuration lacks; unknown architectures need a stated
    reason.
    """
    if not _check_fields(path, record, log):
        return False
    if "model_type" in shapes.missing:
        if record.unpublished_reason is None:
            hint = nearest(shapes.model_type, all_traits()) if shapes.model_type else ""
            advice = f"unknown architecture{hint}; describe it in traits.toml or give unpublished_reason"
            log.add(path, "config.model_type", shapes.model_type or None, advice)
        return record.unpublished_reason is not None
    for name in sorted(set(shapes.missing) - set(record.missing)):
        log.add(path, f"config.{name}", None, "the shapes need it: give it, or list it under missing")
    for name in sorted(set(record.missing) - set(shapes.missing)):
        log.add(path, "missing", name, "is not missing: the shapes are complete without it")
    if shapes.missing and record.params_difference is not None:
        log.add(path, "params_difference", None, "cannot be judged: the shapes are incomplete")
    return set(record.missing) == set(shapes.missing) and _check_proportions(path, shapes, log)


def _check_fields(path: Path, record: ModelRecord, log: FaultLog) -> bool:
    """A misspelt configuration field would pass for an absent one, so every field must be a known one."""
    unknown = [
        (part, name)
        for part, fields in (("config", record.config), ("filled", record.filled))
        for name in fields
        if name not in known_fields()
    ]
    for part, name in unknown:
        hint = nearest(name, known_fields())
        log.add(path, f"{part}.{name}", None, f"unknown configuration field{hint}; if it is real, add it to "
                "config_fields.toml")  # fmt: skip
    return not unknown


def _check_proportions(path: Path, shapes: ModelShapes, log: FaultLog) -> bool:
    """Sizes that cannot be or cannot go together, said once per model."""
    before = len(log.faults)
    if not shapes.layers and not shapes.missing:
        log.add(path, "config", None, "describes no layer")
    for name in ("hidden_size", "vocab_size") if shapes.layers else ():
        if shapes.model.get(name) == 0:
            log.add(path, f"config.{name}", 0, "must be more than 0")
    for name, value in (item for one in (shapes.model, *shapes.layers) for item in one.items()):
        if isinstance(value, int) and value > LARGEST_SIZE:
            log.add(path, f"config.{name}", value, f"must be at most {LARGEST_SIZE}")
            return False
    for layer in shapes.layers:
        heads, kv_heads = layer.get("n_heads") or 0, layer.get("n_kv_heads") or 0
        if kv_heads and heads % kv_heads:
            advice = f"{heads} query heads are not a multiple of {kv_heads} key-value heads"
            log.add(path, "config.num_key_value_heads", kv_heads, advice)
            break
        if (layer.get("n_experts_used") or 0) > (layer.get("n_experts") or 0):
            advice = f"a token cannot use more than the {layer.get('n_experts') or 0} experts there are"
            log.add(path, "config.num_experts_per_tok", layer["n_experts_used"], advice)
            break
    return len(log.faults) == before


def _check_total(path: Path, record: ModelRecord, counted: Mapping[str, int], log: FaultLog) -> None:
    total = record.total_params
    if total is None:
        return
    sums = (counted["computed_params"], counted["computed_params"] + counted["mtp_params"])
    nearest_sum = min(sums, key=lambda one: abs(one - total))
    share = (nearest_sum - total) / total
    digits = 4 if 0 < abs(share) < SMALL_SHARE else 2
    amount = f"the configuration amounts to {nearest_sum}, {share:+.{digits}%}"
    if abs(share) > TOLERANCE and record.params_difference is None:
        log.add(path, "total_params", total, f"{amount}: give params_difference")
    if abs(share) <= TOLERANCE and record.params_difference is not None:
        log.add(path, "params_difference", None, f"is not needed: {amount}")


def _row(model: str, record: ModelRecord, shapes: ModelShapes) -> dict[str, Any]:
    reason = _unpublished_reason(record, shapes)
    difference = record.params_difference
    return {
        "model": model,
        "family": record.family,
        "organisation": model.split("/")[0],
        "architecture": shapes.architecture or None,
        "model_type": shapes.model_type or None,
        "licence": record.licence,
        "release_date": record.release_date,
        "total_params": record.total_params,
        "params_difference_reason": difference.reason if difference else None,
        "params_difference_certainty": difference.certainty if difference else None,
        "native_context_tokens": shapes.native_context_tokens,
        "config_equals": record.config_equals,
        "provenance": record.provenance,
        "confidence": record.confidence,
        "missing_fields": ";".join(shapes.missing) or None,
        "published": reason is None,
        "unpublished_reason": reason,
        "note": record.note,
        "citation": next((citation for citation, names in record.cite.items() if "config" in names), ""),
        **{f"stated_{name}": shapes.model.get(name) or None for name in STATED_SIZES},
    }


def _unpublished_reason(record: ModelRecord, shapes: ModelShapes) -> str | None:
    if record.unpublished_reason is not None:
        return record.unpublished_reason
    if shapes.missing:
        return f"configuration lacks {', '.join(shapes.missing)}"
    if record.confidence == "low":
        return "low confidence"
    if shapes.native_context_tokens is None:
        return "native context length not known"
    return None
