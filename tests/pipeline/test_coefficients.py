"""The coefficient files are read whole, and every kind of fault is found with its file and line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.coefficients import BLOCKS, read_coefficients
from pipeline.contracts.faults import FaultLog
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"


def faults_after(tmp_path: Path, file: str, old: str, new: str) -> list[str]:
    shutil.copytree(SOURCES / "coefficients", tmp_path / "coefficients")
    path = tmp_path / "coefficients" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    log = FaultLog(tmp_path)
    read_coefficients(tmp_path, log, CitationUse())
    return [str(fault) for fault in log]


def test_the_repository_is_sound_and_every_number_is_cited() -> None:
    log, use = FaultLog(SOURCES), CitationUse()
    table = read_coefficients(SOURCES, log, use)
    assert list(log) == []
    assert violations(table, "coefficients") == []
    assert set(table.get_column("model")) == set(BLOCKS)
    assert len(use.facts) == table.height
    assert set(use.used) == set(table.get_column("citation"))


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "decode.csv",
            "qc,16bit",
            "qcc,16bit",
            "coefficients/decode.csv:62: block = 'qcc': unknown block; nearest: qc",
        ),
        ("decode.csv", "qc,bf16", "qc,8bit", "is given twice in block qc"),
        ("prefill.csv", "0.3319", "-0.3319", "more than 0"),
        ("serving.csv", "143.7", "inf", "finite"),
        ("serving.csv", "143.7,us", "143.7,", "required field is missing"),
        ("interval.csv", "decode_low,engine,0.505", "decode_low,engine,1.505", "an interval must hold 1"),
    ],
)
def test_faults_are_named(tmp_path: Path, file: str, old: str, new: str, words: str) -> None:
    found = faults_after(tmp_path, file, old, new)
    assert len(found) == 1
    assert words in found[0]


def test_missing_and_unknown_files_are_faults(tmp_path: Path) -> None:
    shutil.copytree(SOURCES / "coefficients", tmp_path / "coefficients")
    (tmp_path / "coefficients" / "serving.csv").rename(tmp_path / "coefficients" / "servings.csv")
    log = FaultLog(tmp_path)
    read_coefficients(tmp_path, log, CitationUse())
    assert [str(fault) for fault in log] == [
        "coefficients/serving.csv: path: file is missing",
        "coefficients/servings.csv: path = 'servings': unknown formula; nearest: serving",
    ]
