"""Reads `sources/memory_plans/*.csv`: what an engine's own planner says it would allocate, per device."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

import polars as pl

from pipeline.contracts.anchors import NotNegative
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import path_id, read_rows, source_files
from pipeline.contracts.strict import PositiveInt, PositiveShort, StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER: Final = "memory_plans"
KEY: Final = (
    "model", "weights", "prediction_layers", "context_tokens", "ubatch_tokens", "slots", "kv_unified",
    "flash_attention", "kv_dtype", "outputs", "n_gpus", "device",
)  # fmt: skip


class MemoryPlanRow(StrictRow):
    """One device of one planned run of llama.cpp. No `quant` where the weights are no mix of ours."""

    model: Text
    weights: Text
    quant: Text | None = None
    prediction_layers: Literal["kept", "left_out"]
    context_tokens: PositiveInt
    ubatch_tokens: PositiveInt
    slots: PositiveShort
    kv_unified: Literal["true", "false"]
    flash_attention: Literal["on", "off"]
    kv_dtype: Text
    outputs: PositiveInt
    n_gpus: PositiveShort
    device: Text
    weights_mib: NotNegative
    context_mib: NotNegative
    compute_mib: NotNegative
    citation: Text


def read_memory_plans(
    root: Path,
    log: FaultLog,
    use: CitationUse,
    models: Collection[str],
    quants: Collection[str],
    kv_dtypes: Collection[str],
) -> pl.DataFrame:
    """The table `memory_plans`, of all files of the folder.

    Logs: an unknown model, quant or kv_dtype, a device that the run does not have, a setting that is given
    twice (whatever the file), a context on the host.
    """
    first_seen: dict[tuple[object, ...], str] = {}
    rows: list[dict[str, object]] = []
    known = {"model": models, "quant": quants, "kv_dtype": kv_dtypes}
    for path in source_files(root, FOLDER, ".csv"):
        if path_id(path, root / FOLDER, log) is None:
            continue
        for line, row in read_rows(path, MemoryPlanRow, log):
            use.note(row.citation, path, line)
            found = row.model_dump()
            key = tuple(found[name] for name in KEY)
            place = f"{log.relative(path)}:{line}"
            strange = [
                kind for kind, ids in known.items() if found[kind] is not None and found[kind] not in ids
            ]
            devices = ["host", *(f"gpu{number}" for number in range(row.n_gpus))]
            if strange:
                kind = strange[0]
                log.add(path, kind, found[kind], unknown_name(found[kind], known[kind], kind), line)
            elif row.device not in devices:
                log.add(path, "device", row.device, f"is none of {', '.join(devices)}", line)
            elif row.device == "host" and row.context_mib > 0:
                log.add(path, "context_mib", row.context_mib, "the cache lies on the GPUs", line)
            elif first_seen.setdefault(key, place) != place:
                log.add(path, "model", row.model, f"has this setting already at {first_seen[key]}", line)
            else:
                rows.append({**found, "kv_unified": row.kv_unified == "true"})
    return pl.DataFrame(rows, schema=polars_schema("memory_plans"), orient="row").sort(KEY)
