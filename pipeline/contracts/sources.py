"""Reads all of `sources/`: every file is sound and every table comes back, or all faults are raised."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl

from estimator import rule_of_thumb
from estimator.residuals import SETTING_TABLES, anchor_residuals, flag_above_bound
from pipeline.contracts.citations import check_citation_use, read_citations
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.coefficients import read_coefficients
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.frameworks import read_frameworks
from pipeline.contracts.gguf_publishers import read_gguf_publishers
from pipeline.contracts.gguf_tokenizers import read_gguf_tokenizers
from pipeline.contracts.gpus import read_gpus
from pipeline.contracts.grid import GRID_FILE, check_grid_ids, read_grid
from pipeline.contracts.kv_dtypes import read_kv_dtypes
from pipeline.contracts.labels import read_labels
from pipeline.contracts.latent_modes import read_latent_modes
from pipeline.contracts.launch_templates import read_launch_templates
from pipeline.contracts.llama_cpp_compute import read_llama_cpp_compute
from pipeline.contracts.measurements import read_measurements
from pipeline.contracts.memory_plans import read_memory_plans
from pipeline.contracts.memory_reports import KINDS, read_memory_reports
from pipeline.contracts.models import read_models
from pipeline.contracts.quants import read_quants
from pipeline.contracts.stray_files import check_every_file_is_read
from pipeline.contracts.support import read_support
from pipeline.contracts.weight_tables import weight_tables
from warehouse.dictionary import conform


def read_sources(root: Path) -> dict[str, pl.DataFrame]:
    """Every table that comes from `sources/`, by name, each with exactly the columns of its dictionary.

    Raises SourceFaults with all faults of all files; nothing is written here. The grid is checked too (see
    `grid`).
    """
    log, use = FaultLog(root), CitationUse()
    tables = {**read_gpus(root, log, use), **read_models(root, log, use), **read_quants(root, log, use)}
    tables |= read_frameworks(root, log, use)
    frameworks = _ids(tables, "frameworks", "framework", log)
    tables["kv_dtypes"] = read_kv_dtypes(root, log, use, frameworks)
    tables["launch_templates"] = read_launch_templates(root, log, use, frameworks)
    tables["latent_modes"] = read_latent_modes(root, log, use, frameworks)
    caches = _ids(tables, "kv_dtypes", "kv_dtype", log)
    tables |= read_support(root, log, use, frameworks, _ids(tables, "quants", "quant", log), caches)
    tables["coefficients"] = read_coefficients(root, log, use)
    tables["llama_cpp_compute"] = read_llama_cpp_compute(root, log, use, _ids(tables, "models", "model", log))
    tables["memory_plans"] = read_memory_plans(
        root, log, use, _ids(tables, "models", "model", log), _ids(tables, "quants", "quant", log), caches
    )
    tables["gguf_tokenizers"] = read_gguf_tokenizers(root, log, use)
    tables["gguf_publishers"] = read_gguf_publishers(root, log, use, _ids(tables, "quants", "quant", log))
    tables["labels"] = read_labels(root, log, use)
    tables |= read_measurements(root, tables, log, use)
    ids = {kind: _ids(tables, f"{kind}s", kind, log) for kind in KINDS}
    tables["memory_reports"] = read_memory_reports(root, log, use, ids)
    _check_grid(root, tables, log)
    check_every_file_is_read(root, log)
    use.note(rule_of_thumb.CITATION, root / GRID_FILE)
    tables["citations"] = read_citations(root, log)
    check_citation_use(root, tables["citations"], use, log)
    log.raise_if_any()
    tables |= weight_tables(tables)
    tables["anchors"] = flag_above_bound(tables["anchors"], _residuals(tables))
    tables["facts"] = facts(use)
    return {name: conform(table, name) for name, table in tables.items()}


def _residuals(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Estimates beside the anchors; needed here, because being above the bound is a state of an anchor."""
    typed = {name: conform(tables[name], name) for name in (*SETTING_TABLES, "anchors", "serving_anchors")}
    return anchor_residuals(typed["anchors"].lazy(), typed["serving_anchors"].lazy(), typed).collect()


def facts(use: CitationUse) -> pl.DataFrame:
    """The table `facts`: one row per cited field of a record, its value as written, and its source."""
    columns = ["table_name", "record", "field", "value", "citation"]
    rows = pl.DataFrame(use.facts, schema=dict.fromkeys(columns, pl.String), orient="row")
    return rows.unique(["table_name", "record", "field", "citation"], keep="first").sort(
        "table_name", "record", "field", "citation"
    )


def _ids(tables: dict[str, pl.DataFrame], table: str, column: str, log: FaultLog) -> Collection[str]:
    """The ids that other files may name: also refused ones, whose own fault is enough."""
    return sorted({*tables[table].get_column(column), *log.refused})


def _check_grid(root: Path, tables: dict[str, pl.DataFrame], log: FaultLog) -> None:
    grid = read_grid(root, log)
    if grid is not None:
        kinds = ("gpu", "model", "framework", "quant", "kv_dtype")
        check_grid_ids(root, grid, {kind: _ids(tables, f"{kind}s", kind, log) for kind in kinds}, log)
