"""Reads `sources/memory_logs/*.csv`: what engines say they allocated, in MiB as their logs print it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import StringConstraints

from pipeline.contracts.anchors import NotNegative
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.reading import path_id, read_rows, source_files
from pipeline.contracts.strict import CountShort, Positive, PositiveInt, PositiveShort, StrictRow, Text

FOLDER = "memory_logs"


class MemoryLogRow(StrictRow):
    """One run. `basis` says whether the figures were parsed from a log, quoted, measured as a peak, or
    derived.
    """

    log_id: Annotated[str, StringConstraints(pattern=r"^ml-[0-9a-f]{12}$")]
    engine_name: Text
    engine_version: Text | None = None
    gpu_name: Text | None = None
    n_gpus: CountShort | None = None
    model_name: Text | None = None
    file_name: Text | None = None
    quant_name: Text | None = None
    params_billion: Positive | None = None
    file_mib: Positive | None = None
    bpw: Positive | None = None
    context_tokens: PositiveInt | None = None
    n_slots: PositiveShort | None = None
    ubatch_tokens: PositiveInt | None = None
    flash_attention: Literal["on", "off"] | None = None
    mla_mode: CountShort | None = None
    kv_cache_name: Text | None = None
    layers_on_gpu: CountShort | None = None
    n_layers_counted: PositiveShort | None = None
    tensor_parallel: PositiveShort | None = None
    weights_gpu_mib: NotNegative | None = None
    weights_cpu_mib: NotNegative | None = None
    kv_gpu_mib: NotNegative | None = None
    kv_cpu_mib: NotNegative | None = None
    compute_gpu_mib: NotNegative | None = None
    compute_host_mib: NotNegative | None = None
    output_buffer_mib: NotNegative | None = None
    other_mib: NotNegative | None = None
    total_gpu_mib: NotNegative | None = None
    kv_tokens: PositiveInt | None = None
    activation_mib: NotNegative | None = None
    non_torch_mib: NotNegative | None = None
    cuda_graph_mib: NotNegative | None = None
    per_device: Text | None = None
    basis: Literal["parsed-log", "quoted-log", "measured-peak", "derived"]
    note: Text | None = None
    citation: Text
    locator: Text | None = None


_INTEGERS = {"n_gpus": pl.Int16, "context_tokens": pl.Int32, "n_slots": pl.Int16, "ubatch_tokens": pl.Int32,
             "mla_mode": pl.Int16, "layers_on_gpu": pl.Int16, "n_layers_counted": pl.Int16,
             "tensor_parallel": pl.Int16,
             "kv_tokens": pl.Int32}  # fmt: skip
_FLOATS = ("params_billion", "file_mib", "bpw", "weights_gpu_mib", "weights_cpu_mib", "kv_gpu_mib",
           "kv_cpu_mib",
           "compute_gpu_mib", "compute_host_mib", "output_buffer_mib", "other_mib", "total_gpu_mib",
           "activation_mib",
           "non_torch_mib", "cuda_graph_mib")  # fmt: skip
SCHEMA: dict[str, type[pl.DataType]] = {
    name: _INTEGERS.get(name, pl.Float64 if name in _FLOATS else pl.String)
    for name in MemoryLogRow.model_fields
}


def read_memory_logs(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """All runs, one row per `log_id`, names as written. Faults as for anchors."""
    first_seen: dict[str, str] = {}
    rows: list[dict[str, object]] = []
    for path in source_files(root, FOLDER, ".csv"):
        if path_id(path, root / FOLDER, log) is None:
            continue
        for line, row in read_rows(path, MemoryLogRow, log):
            use.note(row.citation, path, line)
            place = f"{log.relative(path)}:{line}"
            if first_seen.setdefault(row.log_id, place) != place:
                log.add(path, "log_id", row.log_id, f"is already used at {first_seen[row.log_id]}", line)
                continue
            rows.append(row.model_dump())
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")
