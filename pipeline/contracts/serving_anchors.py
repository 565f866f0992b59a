"""Reads `sources/anchors/serving/*.csv`: measured results of many requests, as their sources wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from pipeline.contracts.anchors import EvidenceKind, MeasuredRow, Verification, read_measured
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.strict import PartialDate, Positive, PositiveInt, PositiveShort, Text

FOLDER = "anchors/serving"
RateKind = Literal[
    "request-time", "decode-only", "static-batch", "wall", "offline-max", "open-loop", "mlperf-server",
    "mlperf-interactive", "disaggregated", "latency-only", "fitted",
]  # fmt: skip


class ServingAnchorRow(MeasuredRow):
    """One measured setting of a serving engine. `rate_kind` says what the printed throughput means."""

    n_nodes: PositiveShort | None = None
    tensor_parallel: PositiveShort | None = None
    pipeline_parallel: PositiveShort | None = None
    expert_parallel: PositiveShort | None = None
    data_parallel: PositiveShort | None = None
    host_note: Text | None = None
    framework_name: Text | None = None
    framework_version: Text | None = None
    backend_name: Text | None = None
    model_name: Text | None = None
    quant_name: Text | None = None
    kv_cache_name: Text | None = None
    input_tokens: Positive | None = None
    output_tokens: Positive | None = None
    n_requests: PositiveInt | None = None
    request_rate_per_s: Positive | None = None
    speculation: Text | None = None
    rate_kind: RateKind
    output_tok_s: Positive | None = None
    output_tok_s_per_request: Positive | None = None
    total_tok_s: Positive | None = None
    ttft_mean_ms: Positive | None = None
    ttft_median_ms: Positive | None = None
    ttft_p99_ms: Positive | None = None
    tpot_mean_ms: Positive | None = None
    tpot_median_ms: Positive | None = None
    tpot_p99_ms: Positive | None = None
    measured_on: PartialDate | None = None
    organisation: Text | None = None
    evidence_kind: EvidenceKind
    verification: Verification
    note: Text | None = None
    citation: Text
    locator: Text | None = None


SCHEMA: dict[str, type[pl.DataType]] = {
    "anchor_id": pl.String, "publisher": pl.String, "gpu_name": pl.String, "n_gpus": pl.Int16,
    "n_nodes": pl.Int16,
    "tensor_parallel": pl.Int16, "pipeline_parallel": pl.Int16, "expert_parallel": pl.Int16,
    "data_parallel": pl.Int16, "host_note": pl.String, "framework_name": pl.String,
    "framework_version": pl.String,
    "backend_name": pl.String, "model_name": pl.String, "quant_name": pl.String, "kv_cache_name": pl.String,
    "input_tokens": pl.Float64, "output_tokens": pl.Float64, "n_requests": pl.Int32,
    "request_rate_per_s": pl.Float64, "speculation": pl.String, "rate_kind": pl.String,
    "output_tok_s": pl.Float64,
    "output_tok_s_per_request": pl.Float64, "total_tok_s": pl.Float64, "ttft_mean_ms": pl.Float64,
    "ttft_median_ms": pl.Float64, "ttft_p99_ms": pl.Float64, "tpot_mean_ms": pl.Float64,
    "tpot_median_ms": pl.Float64, "tpot_p99_ms": pl.Float64, "measured_on": pl.String,
    "organisation": pl.String,
    "evidence_kind": pl.String, "verification": pl.String, "note": pl.String, "citation": pl.String,
    "locator": pl.String,
}  # fmt: skip


def read_serving_anchors(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """All serving rows as written, one per `anchor_id`, with `publisher` (the file's name); faults as
    `read_anchors`.
    """
    return read_measured(root, FOLDER, ServingAnchorRow, SCHEMA, log, use)
