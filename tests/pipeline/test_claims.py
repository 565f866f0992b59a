"""Claims: nineteen answers and forty-two rows are there; one without its answer or unit is a fault."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.claims import read_claims
from pipeline.contracts.faults import FaultLog

SOURCES = Path(__file__).parents[2] / "sources"
HEAD = 'title = "A page"\ncitation = "claims-x/a"\n[[claim]]\nclaim = "q1"\nstatement = "speed"\n'


def test_both_pages_are_whole() -> None:
    log = FaultLog(SOURCES)
    claims = read_claims(SOURCES, log, CitationUse(), {})
    assert list(log) == []
    questions = claims.filter(pl.col("page") == "tps_calculator_faq").get_column("question")
    assert set(questions) == set(range(1, 20))
    page = claims.filter(pl.col("page") == "v100_8b_page")
    assert page.filter(pl.col("quantity") == "verdict").height == 42
    speeds = page.filter(pl.col("quantity") == "decode_tok_s")
    assert speeds.height == 35
    assert (speeds["low"] < speeds["high"]).all()
    parts = page.filter(pl.col("quantity").is_in(["weights", "kv_cache"])).group_by("quant", "context_tokens")
    total = page.filter(pl.col("quantity") == "total").select("quant", "context_tokens", total="low")
    both = total.join(parts.agg(pl.col("low").sum()), on=["quant", "context_tokens"])
    assert (both["low"] + 1 - both["total"]).abs().max() <= 0.11  # the page rounds to tenths


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ('quantity = "decode_tok_s"\nlow = 30.0\nhigh = 20.0\nunit = "tok/s"', "low 30 is above high 20"),
        ('quantity = "decode_tok_s"\nlow = 30.0', "low or high and unit go together"),
        ('quantity = "decode_tok_s"', "decode_tok_s needs a low or high"),
        ('quantity = "fits"', "fits needs its answer"),
        (
            'gpu = "rtx-4091-24gb"\nquantity = "fits"\nfits = true',
            "q1.gpu = 'rtx-4091-24gb': unknown gpu; nearest: rtx-4090-24gb",
        ),
    ],
)
def test_a_faulty_claim_says_why(tmp_path: Path, record: str, words: str) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "a.toml").write_text(HEAD + record + "\n", encoding="utf-8")
    log = FaultLog(tmp_path)
    assert read_claims(tmp_path, log, CitationUse(), {"gpu": ["rtx-4090-24gb"]}).is_empty()
    assert [str(fault).replace(":: ", ": ") for fault in log] == [f"claims/a.toml: {words}"]
