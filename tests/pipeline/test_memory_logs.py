"""Memory logs: the repository's are sound, totals are not below their parts, faults name the line."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.memory_logs import MemoryLogRow, read_memory_logs

SOURCES = Path(__file__).parents[2] / "sources"
COLUMNS = list(MemoryLogRow.model_fields)


def test_the_repository_is_sound() -> None:
    log = FaultLog(SOURCES)
    logs = read_memory_logs(SOURCES, log, CitationUse())
    assert list(log) == []
    assert logs.height >= 142
    parsed = logs.filter((pl.col("basis") == "parsed-log") & (pl.col("total_gpu_mib") > 0))
    parts = pl.sum_horizontal("weights_gpu_mib", "kv_gpu_mib", "compute_gpu_mib")
    assert parsed.filter(parts > pl.col("total_gpu_mib") * 1.001 + 1).is_empty()


def test_a_negative_size_is_a_fault(tmp_path: Path) -> None:
    row = {
        "log_id": "ml-0123456789ab",
        "engine_name": "llama.cpp",
        "kv_gpu_mib": "-1",
        "basis": "parsed-log",
        "citation": "measured-x/a",
    }
    (tmp_path / "memory_logs").mkdir()
    text = ",".join(COLUMNS) + "\n" + ",".join(row.get(name, "") for name in COLUMNS) + "\n"
    (tmp_path / "memory_logs" / "a.csv").write_text(text, encoding="utf-8")
    log = FaultLog(tmp_path)
    assert read_memory_logs(tmp_path, log, CitationUse()).is_empty()
    assert [str(fault) for fault in log] == ["memory_logs/a.csv:2: kv_gpu_mib = '-1': must be at least 0"]
