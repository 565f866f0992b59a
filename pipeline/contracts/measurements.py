"""Reads everything measured and claimed, and resolves the names in it to our ids through the alias tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from estimator.anchor_names import (
    alias_report,
    corrected,
    file_size_names,
    memory_log_names,
    resolved,
    unresolved_names,
)
from estimator.anchor_state import decode_state, serving_state
from pipeline.contracts.aliases import nearest_ids, read_aliases, read_readings
from pipeline.contracts.anchor_findings import (
    check_anchor_ids,
    read_corrections,
    read_flags,
    read_publisher_trust,
)
from pipeline.contracts.anchors import read_anchors
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.claims import read_claims
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.file_sizes import read_file_sizes
from pipeline.contracts.memory_flags import read_memory_flags
from pipeline.contracts.memory_logs import read_memory_logs
from pipeline.contracts.serving_anchors import read_serving_anchors

KINDS = ("gpu", "model", "quant", "framework")


def read_measurements(
    root: Path, tables: Mapping[str, pl.DataFrame], log: FaultLog, use: CitationUse
) -> dict[str, pl.DataFrame]:
    """anchors, serving_anchors, file_sizes, memory_logs, memory_flags, claims, alias_names and
    unresolved_names.

    `tables` holds gpus, models, quants, frameworks and kv_dtypes. A name that stands for nothing known is a
    state (`unresolved`), an alias that points to an unknown id is a fault.
    """
    ids = {kind: [*tables[f"{kind}s"].get_column(kind).to_list(), *sorted(log.refused)] for kind in KINDS}
    caches = [*_cache_ids(tables["frameworks"], tables["kv_dtypes"]), *sorted(log.refused)]
    aliases = read_aliases(root, log, {**ids, "kv_dtype": caches})
    readings = read_readings(root, log, use, ids)
    things = (tables["gpus"], tables["models"], tables["quants"])
    decode, serving = read_anchors(root, log, use), read_serving_anchors(root, log, use)
    check_anchor_ids(root, pl.concat([decode.get_column("anchor_id"), serving.get_column("anchor_id")]), log)
    memory_logs = read_memory_logs(root, log, use)
    flags, publishers = read_flags(root, log, use), read_publisher_trust(root, log, use)

    def named(rows: pl.DataFrame, used_in: str) -> pl.DataFrame:
        mended = corrected(rows, read_corrections(root, rows, log, use))
        return resolved(mended, used_in, aliases, readings, *things, tables["frameworks"])

    decode = decode_state(named(decode, "decode"), flags, publishers, *things)
    serving = serving_state(named(serving, "serving"), flags, publishers, *things)
    gpus, models, quants = things
    return {
        "anchors": decode,
        "serving_anchors": serving,
        "file_sizes": file_size_names(read_file_sizes(root, log, use), aliases, models, quants),
        "memory_logs": memory_log_names(memory_logs, aliases, gpus, models, quants, tables["frameworks"]),
        "memory_flags": read_memory_flags(root, log, use, memory_logs.get_column("log_id").to_list()),
        "claims": read_claims(root, log, use, ids),
        "alias_names": alias_report(aliases),
        "unresolved_names": nearest_ids(unresolved_names(decode, serving), ids),
    }


def _cache_ids(frameworks: pl.DataFrame, kv_dtypes: pl.DataFrame) -> list[str]:
    """ "framework kv_dtype" as alias files may name them. An engine without cache types of its own, which
    occurs only in measurements, may name any type that another engine has.
    """
    bare = frameworks.join(kv_dtypes, on="framework", how="anti").select("framework")
    any_type = bare.join(kv_dtypes.select("kv_dtype").unique(), how="cross")
    every = pl.concat([kv_dtypes.select("framework", "kv_dtype"), any_type])
    return every.select(pl.concat_str("framework", "kv_dtype", separator=" ")).to_series().sort().to_list()
