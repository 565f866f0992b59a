"""Labels: every word of the closed sets has an English and a Chinese name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.labels import read_labels
from warehouse.dictionary import table, violations

SOURCES = Path(__file__).parents[2] / "sources"


def test_sources_are_sound() -> None:
    log = FaultLog(SOURCES)
    frame = read_labels(SOURCES, log, CitationUse())
    assert [str(fault) for fault in log] == []
    assert violations(frame, "labels") == []


@pytest.mark.parametrize(
    ("term", "of_table", "column"),
    [
        ("quant_class", "quants", "quant_class"), ("density_basis", "quants", "density_basis"),
        ("quant_level", "quants", "level"), ("framework_role", "frameworks", "role"),
        ("memory_policy", "frameworks", "memory_policy"), ("parallel_mode", "frameworks", "parallel_mode"),
        ("backend", "support_hardware", "backend"), ("supported", "support_hardware", "supported"),
        ("arithmetic", "support_formats", "arithmetic"),
    ],
)  # fmt: skip
def test_every_word_of_a_closed_set_has_a_label(term: str, of_table: str, column: str) -> None:
    frame = read_labels(SOURCES, FaultLog(SOURCES), CitationUse())
    named = {value for found, value, _, _ in frame.iter_rows() if found == term}
    assert set(table(of_table).column(column).enum) == named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[verdict]\ntight = { en = "tight" }\n', "zh: required field is missing"),
        ('[verdict]\ntight = "tight"\n', "must be { en"),
        ("verdict = 1\n", "must be a table of words"),
    ],
)
def test_faulty_labels_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels.toml").write_text(text, encoding="utf-8")
    log = FaultLog(tmp_path)
    read_labels(tmp_path, log, CitationUse())
    assert any(message in str(fault) for fault in log), list(map(str, log))
