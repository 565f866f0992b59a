"""Launch commands: placeholders of a known set, frameworks that exist."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.frameworks import read_frameworks
from pipeline.contracts.launch_templates import LaunchTemplateRow, read_launch_templates
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
HEADER = ",".join(LaunchTemplateRow.model_fields) + "\n"


def test_sources_are_sound_and_every_serving_engine_has_a_command() -> None:
    log, use = FaultLog(SOURCES), CitationUse()
    frameworks = read_frameworks(SOURCES, log, use)["frameworks"]
    frame = read_launch_templates(SOURCES, log, use, frameworks.get_column("framework").to_list())
    assert [str(fault) for fault in log] == []
    assert violations(frame, "launch_templates", {"frameworks": frameworks}) == []
    assert frame.height == 67
    usable = frameworks.filter(pl.col("role").cast(pl.String) != "measured-only").get_column("framework")
    assert set(usable) <= set(frame.get_column("framework"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "vllm,single_gpu,vllm serve {rep},,high,a/b,",
            "template = '{rep}': unknown placeholder; nearest: repo",
        ),
        ("vlm,single_gpu,vllm serve {repo},,high,a/b,", "unknown framework; nearest: vllm"),
        ("vllm,one_gpu,vllm serve {repo},,high,a/b,", "nearest: single_gpu"),
    ],
)
def test_faulty_rows_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "launch_templates").mkdir()
    (tmp_path / "launch_templates" / "x.csv").write_text(HEADER + line + "\n", encoding="utf-8")
    log = FaultLog(tmp_path)
    frame = read_launch_templates(tmp_path, log, CitationUse(), ["vllm"])
    assert frame.is_empty()
    assert any("x.csv:2:" in str(fault) and message in str(fault) for fault in log), list(map(str, log))
