"""Reports of running out of memory: rows, faults, and files that are dropped in beside the first."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.memory_reports import read_memory_reports
from warehouse.dictionary import violations

HEADER = "gpu,n_gpus,model,quant,framework,context_tokens,outcome,explanation,citation,locator"
IDS = {"gpu": ["card"], "model": ["maker/model"], "quant": ["native/bf16"], "framework": ["vllm"]}
GOOD = "card,2,maker/model,native/bf16,vllm,4096,out_of_memory,,a/b,issue"


def read(root: Path, **files: str) -> tuple[pl.DataFrame, list[str]]:
    (root / "memory_reports").mkdir()
    for name, rows in files.items():
        (root / "memory_reports" / f"{name}.csv").write_text(f"{HEADER}\n{rows}\n")
    log = FaultLog(root)
    return read_memory_reports(root, log, CitationUse(), IDS), [str(fault) for fault in log]


def test_every_file_is_read_and_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    other = "card,1,maker/model,native/bf16,vllm,,ran,,a/b,comment"
    table, faults = read(tmp_path, first=GOOD, second=other)
    assert faults == []
    assert table.get_column("report").to_list() == ["first:2", "second:2"]
    assert table.get_column("context_tokens").to_list() == [4096, None]
    assert violations(table, "memory_reports") == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("card", "cart", "gpu"),
        ("maker/model", "maker/other", "model"),
        ("native/bf16", "native/bf61", "quant"),
        (",vllm,", ",vlm,", "framework"),
        ("out_of_memory", "crashed", "outcome"),
        (",2,", ",0,", "n_gpus"),
        (",4096,", ",-1,", "context_tokens"),
        ("issue", "", "locator"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, old: str, new: str, fault: str) -> None:
    table, faults = read(tmp_path, first=GOOD.replace(old, new))
    assert table.is_empty()
    assert len(faults) == 1
    assert fault in faults[0]


def test_a_report_given_twice_is_a_fault(tmp_path: Path) -> None:
    table, faults = read(tmp_path, first=GOOD, second=GOOD)
    assert table.height == 1
    assert len(faults) == 1
    assert "given already" in faults[0]
