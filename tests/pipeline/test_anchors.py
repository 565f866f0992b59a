"""Measured single-request rows: the repository's are sound, and each fault says where it is and why."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contracts.anchors import AnchorRow, date_fault, read_anchors
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from warehouse.dictionary import polars_schema

SOURCES = Path(__file__).parents[2] / "sources"
COLUMNS = list(AnchorRow.model_fields)
GOOD = {
    "anchor_id": "al-1",
    "gpu_name": "RTX 4090",
    "n_gpus": "1",
    "rate_kind": "decode",
    "decode_tok_s": "100.5",
    "measured_on": "2025-03",
    "evidence_kind": "raw-log",
    "verification": "raw-output",
    "citation": "measured-x/a",
}


def read(
    tmp_path: Path, *rows: dict[str, str], header: list[str] = COLUMNS
) -> tuple[pl.DataFrame, list[str]]:
    folder = tmp_path / "anchors" / "decode"
    folder.mkdir(parents=True)
    lines = [",".join(header), *(",".join(row.get(name, "") for name in COLUMNS) for row in rows)]
    (folder / "someone.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "citations").mkdir()
    (tmp_path / "citations" / "measured-x.toml").write_text("[a]\nread_on = 2026-11-30\n", encoding="utf-8")
    log = FaultLog(tmp_path)
    frame = read_anchors(tmp_path, log, CitationUse())
    return frame, [str(fault).replace(":: ", ": ") for fault in log]


def test_the_repository_is_sound() -> None:
    log, use = FaultLog(SOURCES), CitationUse()
    anchors = read_anchors(SOURCES, log, use)
    assert list(log) == []
    assert anchors.height > 6800
    assert anchors.get_column("anchor_id").is_unique().all()
    assert set(use.used) == set(anchors.get_column("citation"))
    published = polars_schema("anchors")
    enums = {name for name, dtype in published.items() if isinstance(dtype, pl.Enum)}
    assert all(anchors.schema[name] == published[name] for name in anchors.columns if name not in enums)


def test_a_good_row_is_read_as_written(tmp_path: Path) -> None:
    frame, faults = read(tmp_path, GOOD)
    assert faults == []
    row = frame.row(0, named=True)
    assert (row["publisher"], row["gpu_name"], row["decode_tok_s"]) == ("someone", "RTX 4090", 100.5)
    assert row["prefill_tok_s"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"measured_on": "2026-02-30"},
            "measured_on = '2026-02-30': is no date: day is out of range for month",
        ),
        (
            {"measured_on": "2026-12-01"},
            "measured_on = '2026-12-01': lies in the future of its citation, read on 2026-11-30",
        ),
        (
            {"measured_on": "2027"},
            "measured_on = '2027': lies in the future of its citation, read on 2026-11-30",
        ),
        ({"decode_tok_s": "-3"}, "decode_tok_s = '-3': must be more than 0"),
        ({"decode_tok_s": "inf"}, "decode_tok_s = 'inf': must be a finite number"),
        ({"decode_tok_s": ""}, "needs decode_tok_s, prefill_tok_s or both"),
        (
            {"rate_kind": "decod"},
            "rate_kind = 'decod': must be one of decode, decode-in-context, inter-token, wall; "
            "nearest: decode",
        ),
    ],
)
def test_a_faulty_row_is_named_with_its_line(tmp_path: Path, change: dict[str, str], words: str) -> None:
    frame, faults = read(tmp_path, GOOD, GOOD | {"anchor_id": "al-2"} | change)
    assert faults == [f"anchors/decode/someone.csv:3: {words}"]
    assert frame.get_column("anchor_id").to_list() == ["al-1"]


def test_a_rate_without_its_unit_is_an_unknown_column(tmp_path: Path) -> None:
    header = ["decode" if name == "decode_tok_s" else name for name in COLUMNS]
    frame, faults = read(tmp_path, GOOD, header=header)
    assert faults == [
        "anchors/decode/someone.csv:1: decode: unknown column; nearest: decode_tok_s",
        "anchors/decode/someone.csv:1: decode_tok_s: column is missing",
    ]
    assert frame.is_empty()


def test_an_id_is_used_once(tmp_path: Path) -> None:
    frame, faults = read(tmp_path, GOOD, GOOD)
    assert faults == [
        "anchors/decode/someone.csv:3: anchor_id = 'al-1': is already used at anchors/decode/someone.csv:2"
    ]
    assert frame.height == 1


def test_broken_csv_names_the_line(tmp_path: Path) -> None:
    frame, faults = read(tmp_path, GOOD, GOOD | {"anchor_id": "al-2", "note": '"a"b'})
    assert faults == ["anchors/decode/someone.csv:3: broken CSV: ',' expected after '\"'"]
    assert frame.height == 1


@given(st.dates(date(2000, 1, 1), date(2026, 11, 30)), st.sampled_from([4, 7, 10]))
def test_every_day_up_to_the_reading_is_a_date(day: date, precision: int) -> None:
    written = day.isoformat()[:precision]
    assert date_fault(written, date(2026, 11, 30)) is None
    year_before = date(day.year, 1, 1) - timedelta(days=1)
    assert date_fault(written, year_before) == (
        f"lies in the future of its citation, read on {year_before.isoformat()}"
    )
