"""Corrections and flags: raw is never edited, so a correction must name what the row says."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.contracts.anchor_findings import (
    check_anchor_ids,
    read_corrections,
    read_flags,
    read_publisher_trust,
)
from pipeline.contracts.anchors import read_anchors
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.serving_anchors import read_serving_anchors

SOURCES = Path(__file__).parents[2] / "sources"
ANCHORS = pl.DataFrame({"anchor_id": ["al-1", "al-2"], "model_name": [None, "Qwen3 8B"], "n_gpus": [1, 2]})


def test_the_repository_is_sound() -> None:
    log, use = FaultLog(SOURCES), CitationUse()
    decode, serving = read_anchors(SOURCES, log, use), read_serving_anchors(SOURCES, log, use)
    corrections = [read_corrections(SOURCES, frame, log, use) for frame in (decode, serving)]
    flags, trust = read_flags(SOURCES, log, use), read_publisher_trust(SOURCES, log, use)
    check_anchor_ids(SOURCES, pl.concat([decode["anchor_id"], serving["anchor_id"]]), log)
    assert list(log) == []
    assert all(frame.height > 0 for frame in (*corrections, flags, trust))
    assert not flags.select("anchor_id", "flag").is_duplicated().any()


def test_a_correction_names_the_value_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "anchors").mkdir()
    (tmp_path / "anchors" / "corrections.csv").write_text(
        "anchor_id,field,old_value,new_value,reason,citation\n"
        "al-1,model_name,,Qwen/Qwen3-8B,thread names it,measured-x/a\n"
        "al-2,n_gpus,3,4,two lines below,measured-x/a\n"
        "al-2,n_gpu,2,4,two lines below,measured-x/a\n"
        "al-3,n_gpus,2,4,row of another set,measured-x/a\n",
        encoding="utf-8",
    )
    log = FaultLog(tmp_path)
    corrections = read_corrections(tmp_path, ANCHORS, log, CitationUse())
    assert corrections.get_column("anchor_id").to_list() == ["al-1"]
    assert [str(fault) for fault in log] == [
        "anchors/corrections.csv:3: old_value = '3': must be what stands there: n_gpus of the row is 2",
        "anchors/corrections.csv:4: field = 'n_gpu': unknown column; nearest: n_gpus",
    ]
    log = FaultLog(tmp_path)
    check_anchor_ids(tmp_path, ANCHORS["anchor_id"], log)
    assert [str(fault) for fault in log] == [
        "anchors/corrections.csv:5: anchor_id = 'al-3': unknown anchor; nearest: al-2"
    ]
