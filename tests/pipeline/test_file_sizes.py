"""Published file sizes: exact and rounded ones stay apart, and units are those the source means."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.file_sizes import FileSizeRow, read_file_sizes

SOURCES = Path(__file__).parents[2] / "sources"
COLUMNS = list(FileSizeRow.model_fields)
GOOD = {
    "file_id": "fs-0123456789ab",
    "format": "gguf",
    "size_kind": "file",
    "size_value": "4.6",
    "size_unit": "GB",
    "precision": "rounded",
    "tolerance": "0.05",
    "confidence": "high",
    "citation": "measured-x/a",
    "locator": "line 1",
}


def read(tmp_path: Path, row: dict[str, str]) -> tuple[pl.DataFrame, list[str]]:
    (tmp_path / "file_sizes").mkdir()
    text = ",".join(COLUMNS) + "\n" + ",".join(row.get(name, "") for name in COLUMNS) + "\n"
    (tmp_path / "file_sizes" / "a.csv").write_text(text, encoding="utf-8")
    log = FaultLog(tmp_path)
    frame = read_file_sizes(tmp_path, log, CitationUse())
    return frame, [str(fault).replace(":: ", ": ") for fault in log]


def test_the_repository_is_sound() -> None:
    log = FaultLog(SOURCES)
    sizes = read_file_sizes(SOURCES, log, CitationUse())
    assert list(log) == []
    assert sizes.height > 7900
    exact = sizes.filter(pl.col("precision") == "exact")
    assert exact.height > 400
    assert (exact["size_bytes"] / 2**30 - exact["size_gib"]).abs().max() < 1e-9


def test_decimal_gigabytes_become_gib(tmp_path: Path) -> None:
    frame, faults = read(tmp_path, GOOD)
    assert faults == []
    assert frame.item(0, "size_gib") == pytest.approx(4.6e9 / 2**30)
    assert frame.item(0, "tolerance_gib") == pytest.approx(0.05e9 / 2**30)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tolerance": ""}, "a rounded size, and only that, has a tolerance"),
        ({"precision": "exact", "tolerance": ""}, "an exact size needs size_bytes"),
        ({"size_unit": "MB"}, "size_unit = 'MB': must be one of B, KiB, MiB, GiB, GB; nearest: MiB"),
        ({"size_value": "0"}, "size_value = '0': must be more than 0"),
    ],
)
def test_a_faulty_row_says_why(tmp_path: Path, change: dict[str, str], words: str) -> None:
    frame, faults = read(tmp_path, GOOD | change)
    assert faults == [f"file_sizes/a.csv:2: {words}"]
    assert frame.is_empty()
