"""Measured serving rows: the repository's are sound, and a row says what its throughput means."""

from __future__ import annotations

from pathlib import Path

from pipeline.contracts.anchors import read_anchors
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.serving_anchors import ServingAnchorRow, read_serving_anchors

SOURCES = Path(__file__).parents[2] / "sources"


def test_the_repository_is_sound_and_holds_13000_rows_with_the_decode_rows() -> None:
    log, use = FaultLog(SOURCES), CitationUse()
    serving = read_serving_anchors(SOURCES, log, use)
    decode = read_anchors(SOURCES, log, use)
    assert list(log) == []
    assert serving.height + decode.height >= 13_000
    assert not set(serving.get_column("anchor_id")) & set(decode.get_column("anchor_id"))


def test_a_latency_without_its_unit_and_an_unknown_rate_kind_are_faults(tmp_path: Path) -> None:
    folder = tmp_path / "anchors" / "serving"
    folder.mkdir(parents=True)
    columns = list(ServingAnchorRow.model_fields)
    (folder / "a.csv").write_text(
        ",".join("ttft_mean" if name == "ttft_mean_ms" else name for name in columns) + "\n", encoding="utf-8"
    )
    row = {
        "anchor_id": "srv-1",
        "rate_kind": "offline",
        "output_tok_s": "9",
        "evidence_kind": "table",
        "verification": "vendor-table",
        "citation": "measured-x/a",
    }
    (folder / "b.csv").write_text(
        ",".join(columns) + "\n" + ",".join(row.get(name, "") for name in columns) + "\n", encoding="utf-8"
    )
    log = FaultLog(tmp_path)
    assert read_serving_anchors(tmp_path, log, CitationUse()).is_empty()
    assert [str(fault) for fault in log] == [
        "anchors/serving/a.csv:1: ttft_mean: unknown column; nearest: ttft_mean_ms",
        "anchors/serving/a.csv:1: ttft_mean_ms: column is missing",
        "anchors/serving/b.csv:2: rate_kind = 'offline': must be one of request-time, decode-only, "
        "static-batch, wall, offline-max, open-loop, mlperf-server, mlperf-interactive, disaggregated, "
        "latency-only, fitted; nearest: offline-max",
    ]
