"""Reads `sources/launch_templates/`: commands that start a framework, with names in braces to fill in."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows, source_files
from pipeline.contracts.strict import StrictRow, Text
from warehouse.dictionary import polars_schema

FOLDER = "launch_templates"
PLACEHOLDERS = (
    "repo", "base_repo", "file", "quant", "quant_flag", "context_tokens", "n_gpus", "n_replicas", "n_slots",
    "n_layers_cpu", "kv_flag", "kv_bits", "ratios", "fraction", "config_file", "host_file",
)  # fmt: skip
_BRACES = re.compile(r"\{([^{}]*)\}")


class LaunchTemplateRow(StrictRow):
    """A row of `sources/launch_templates/*.csv`."""

    framework: Text
    case: Literal[
        "single_gpu", "multi_gpu", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel",
        "attention_data_parallel", "layer_split", "graph_split", "several_machines", "context", "kv_dtype",
        "quant",
        "quant_online", "gguf", "bitsandbytes", "dtype_before_ampere", "memory_budget", "local_file",
        "parallel_slots", "experts_on_cpu", "estimate_only",
    ]  # fmt: skip
    template: Text
    note: Text | None = None
    confidence: Literal["high", "medium", "low"]
    citation: Text
    locator: Text | None = None


def read_launch_templates(
    root: Path, log: FaultLog, use: CitationUse, frameworks: Collection[str]
) -> pl.DataFrame:
    """The table `launch_templates`, sorted by framework and case. `frameworks` are the known framework
    ids."""
    rows: dict[tuple[str, str], LaunchTemplateRow] = {}
    for path in source_files(root, FOLDER, ".csv"):
        for line, row in read_rows(path, LaunchTemplateRow, log):
            unknown = [name for name in _BRACES.findall(row.template) if name not in PLACEHOLDERS]
            for name in unknown:
                log.add(
                    path, "template", f"{{{name}}}", unknown_name(name, PLACEHOLDERS, "placeholder"), line
                )
            if row.framework not in frameworks:
                log.add(
                    path,
                    "framework",
                    row.framework,
                    unknown_name(row.framework, frameworks, "framework"),
                    line,
                )
            elif (row.framework, row.case) in rows:
                log.add(path, "case", row.case, f"is given twice for {row.framework}", line)
            elif not unknown:
                use.note(row.citation, path, line)
                rows[row.framework, row.case] = row
    schema = polars_schema("launch_templates")
    return pl.DataFrame([row.model_dump() for _, row in sorted(rows.items())], schema=schema)
