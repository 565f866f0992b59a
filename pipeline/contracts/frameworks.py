"""Reads `sources/frameworks/`: engines, wrappers and measured-only names, with the settings an estimate
assumes.

One file per framework, its name is the id. What a wrapper leaves out is its engine's. What a framework can
run is in `sources/support/`, how a command looks in `sources/launch_templates/`; neither belongs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field, model_validator

from pipeline.contracts.citing import CitationUse, check_cited
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import path_id, read_toml, source_files, validate
from pipeline.contracts.strict import PositiveInt, PositiveShort, Strict, Text
from warehouse.dictionary import polars_schema

FOLDER = "frameworks"

Backend = Literal[
    "cuda", "rocm", "vulkan", "metal", "sycl", "xpu", "cpu", "cann", "hpu", "tpu", "musa", "neuron", "opencl"
]
NotNegative = Annotated[float, Field(ge=0)]
STEP_UNITS = Literal["memory_gib", "context_tokens", "n_gpus"]


class Profile(Strict):
    """Settings of one request."""

    flash_attention: bool | None = None
    ubatch_tokens: PositiveInt | None = None
    batch_tokens: PositiveInt | None = None
    slots: PositiveShort | None = None
    kv_block_tokens: PositiveInt | None = None
    context_step_tokens: PositiveInt | None = None
    quantized_kv_start_tokens: PositiveInt | None = None
    smallest_step_names: list[Text] | None = None
    needs_full_context: bool | None = None


class Memory(Strict):
    """How the engine takes memory."""

    policy: Literal["fixed", "utilization_of_total", "fraction_of_free"] | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _fraction_of_what(self) -> Memory:
        if self.fraction is not None and self.policy in (None, "fixed"):
            raise ValueError("fraction needs policy utilization_of_total or fraction_of_free")
        return self


class Cache(Strict):
    """How the engine lays the KV cache out, and the flags that change what it reserves."""

    layout: Literal["block_groups", "window_share", "whole", "layers"] | None = None
    batches_in_flight: PositiveShort | None = None
    window_margin_tokens: PositiveInt | None = None
    window_share: Annotated[float, Field(gt=0, le=1)] | None = None
    keeps_chunks_whole: bool | None = None
    latent_block_tokens: PositiveInt | None = None
    state_pages: PositiveShort | None = None
    index_bytes_per_element: Annotated[float, Field(gt=0, le=4)] | None = None
    half_state_types: list[Text] | None = None
    block_flag: Text | None = None
    window_flag: Text | None = None
    chunk_flag: Text | None = None
    state_flag: Text | None = None
    latent_flag: Text | None = None


class Runtime(Strict):
    """Runtime memory that depends on neither model nor context, and the rule for what does."""

    activation: Literal["llama_cpp_compute_buffer", "vllm_activation", "sglang_reserve", "none"] = "none"
    context_mib: NotNegative | None = None
    context_metal_mib: NotNegative | None = None
    graph_mib: NotNegative | None = None
    fit_margin_mib: NotNegative | None = None
    reserve_base_mib: NotNegative | None = None
    reserve_per_prefill_token_mib: NotNegative | None = None
    reserve_per_gpu_mib: NotNegative | None = None
    reserve_per_graph_batch_mib: NotNegative | None = None
    reserve_per_prefill_graph_mib: NotNegative | None = None
    reserve_latent_graphs_mib: NotNegative | None = None
    reserve_floor_mib: NotNegative | None = None
    reserve_floor_above_gib: NotNegative | None = None
    reserve_first_gpu_mib: NotNegative | None = None


class Speculation(Strict):
    """Speculative decoding: flags that turn it on and methods offered."""

    flags: list[Text] = Field(default_factory=list)
    methods: list[Text] = Field(default_factory=list)


class Step(Strict):
    """`setting` has `value` from `at_least` on, in the unit that `by` names."""

    setting: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    by: STEP_UNITS
    at_least: NotNegative
    value: NotNegative


class FrameworkRecord(Strict):
    """One file of `sources/frameworks/`."""

    name: Text
    version: Text | None = None
    role: Literal["engine", "wrapper", "measured-only"]
    engine: Text | None = None
    backends: list[Backend]
    parallel_mode: Literal["layer", "tensor", "none"] | None = None
    serves: bool
    confidence: Literal["high", "medium", "low"]
    note: Text | None = None
    profile: Profile = Profile()
    memory: Memory = Memory()
    cache: Cache = Cache()
    runtime: Runtime = Runtime()
    speculation: Speculation = Speculation()
    step: list[Step] = Field(default_factory=list)
    cite: dict[str, list[str]]

    @model_validator(mode="after")
    def _role_and_engine(self) -> FrameworkRecord:
        if self.role == "wrapper" and self.engine is None:
            raise ValueError("a wrapper names its engine")
        if self.role == "engine" and self.engine is not None:
            raise ValueError("an engine has no engine of its own: leave it out or make it a wrapper")
        if self.role != "measured-only" and self.parallel_mode is None:
            raise ValueError("parallel_mode is missing: layer, tensor or none")
        if len(set(self.backends)) != len(self.backends):
            raise ValueError("a backend is given twice")
        if self.step and not any("step" in fields for fields in self.cite.values()):
            raise ValueError("steps without a citation: list 'step' under [cite]")
        if not self.cite:
            raise ValueError("cite is empty: say where the facts are from")
        return self


def read_frameworks(root: Path, log: FaultLog, use: CitationUse) -> dict[str, pl.DataFrame]:
    """The tables `frameworks` and `framework_steps` from `root/frameworks`; faults go to `log`.

    A wrapper's row holds its engine's profile, memory policy and runtime parts wherever it sets none itself,
    and its steps are its engine's where it has none of that setting.
    """
    records = _read_records(root, log, use)
    _check_engines(root, records, log)
    frameworks = [_row(framework, records) for framework in sorted(records)]
    steps = [row for framework in sorted(records) for row in _step_rows(framework, records)]
    return {
        "frameworks": _frame("frameworks", frameworks),
        "framework_steps": _frame("framework_steps", steps),
    }


def _read_records(root: Path, log: FaultLog, use: CitationUse) -> dict[str, FrameworkRecord]:
    records: dict[str, FrameworkRecord] = {}
    for path in source_files(root, FOLDER, ".toml"):
        framework = path_id(path, root / FOLDER, log)
        document = read_toml(path, log)
        log.refused.add(path.name.removesuffix(".toml"))  # until it is sound
        if framework is None or document is None:
            continue
        record = validate(path, FrameworkRecord, document, log)
        if record is None:
            continue
        stated = {name: value for name, value in document.items() if name != "cite"}
        check_cited(path, "frameworks", framework, stated, record.cite, log, use)
        records[framework] = record
        log.refused.discard(framework)
    return records


def _check_engines(root: Path, records: dict[str, FrameworkRecord], log: FaultLog) -> None:
    for framework, record in list(records.items()):
        path = root / FOLDER / f"{framework}.toml"
        if record.engine is None:
            continue
        if record.engine not in records:
            if record.engine not in log.refused:
                log.add(path, "engine", record.engine, unknown_name(record.engine, records, "framework"))
            log.refused.add(framework)
            del records[framework]
        elif records[record.engine].role != "engine":
            log.add(path, "engine", record.engine, "must be an engine, not a wrapper or a measured-only name")
            log.refused.add(framework)
            del records[framework]


def _row(framework: str, records: Mapping[str, FrameworkRecord]) -> dict[str, Any]:
    record = records[framework]
    engine = records[record.engine] if record.engine else record
    profile = _inherited(record.profile, engine.profile)
    runtime = _inherited(record.runtime, engine.runtime)
    memory = _inherited(record.memory, engine.memory)
    cache = _inherited(record.cache, engine.cache)
    profile["smallest_step_names"] = ";".join(profile["smallest_step_names"] or []) or None
    cache["half_state_types"] = ";".join(cache["half_state_types"] or []) or None
    first_citation = next(iter(record.cite))
    return {
        "framework": framework, "name": record.name, "version": record.version, "role": record.role,
        "engine": record.engine or framework, "backends": ";".join(record.backends) or None,
        "parallel_mode": record.parallel_mode, "serves": record.serves,
        **{f"profile_{name}": value for name, value in profile.items()},
        **{f"cache_{name}": value for name, value in cache.items()},
        "memory_policy": memory["policy"], "memory_fraction": memory["fraction"],
        **runtime, "activation_rule": runtime["activation"],
        "overhead_mib": runtime["context_mib"], "overhead_metal_mib": runtime["context_metal_mib"],
        "speculation_flags": " ".join(record.speculation.flags) or None,
        "speculation_methods": ";".join(record.speculation.methods) or None,
        "confidence": record.confidence, "note": record.note, "citation": first_citation,
    }  # fmt: skip


def _inherited(own: Strict, engine: Strict) -> dict[str, Any]:
    """The fields of `own`, and the engine's where `own` does not set them."""
    return {
        name: getattr(own, name) if name in own.model_fields_set else getattr(engine, name)
        for name in type(own).model_fields
    }


def _step_rows(framework: str, records: Mapping[str, FrameworkRecord]) -> list[dict[str, Any]]:
    record = records[framework]
    own = {step.setting for step in record.step}
    givers = [(record, record.step)]
    if record.engine:
        engine = records[record.engine]
        givers.append((engine, [step for step in engine.step if step.setting not in own]))
    return [
        {
            "framework": framework, "setting": step.setting, "depends_on": step.by,
            "at_least": step.at_least, "value": step.value,
            "citation": next(citation for citation, fields in giver.cite.items() if "step" in fields),
        }
        for giver, steps in givers
        for step in sorted(steps, key=lambda step: (step.setting, step.at_least))
    ]  # fmt: skip


def _frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_schema(table)
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)
