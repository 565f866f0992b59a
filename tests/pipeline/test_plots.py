"""Pictures are drawn from real columns, and from few or no rows without falling over."""

from __future__ import annotations

import polars as pl
import pytest

from pipeline.plots import PLOTS
from warehouse.dictionary import polars_schema

PNG = b"\x89PNG\r\n\x1a\n"
ROWS: dict[str, dict[str, list[object]]] = {
    "gpus": {"vendor": ["nvidia", "amd"], "memory_gib": [24.0, None], "bandwidth_gb_s": [1008.0, 960.0]},
    "models": {
        "attention_kind": ["gqa"],
        "total_params": [8_000_000_000],
        "computed_params": [8_030_261_248],
    },
    "quants": {"quant_class": ["q4k", "q4k"], "body_bpw": [4.5, None]},
    "anchor_residuals": {
        "metric": ["decode_tok_s", "ttft_ms"],
        "state": ["accepted", "flagged"],
        "measured": [10.0, 5.0],
        "estimated_mid": [11.0, None],
    },
    "accuracy": {
        "metric": ["decode_tok_s"],
        "split": ["held_out_device"],
        "slice": ["framework"],
        "value": ["llama.cpp"],
        "n_anchors": [12],
        "median_absolute_error_percent": [9.5],
    },
}


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_a_picture_is_a_png_of_modest_size(name: str) -> None:
    columns = {column: dtype for column, dtype in polars_schema(name).items() if column in ROWS[name]}
    assert set(columns) == set(ROWS[name])  # the columns it reads exist
    png = PLOTS[name].draw(pl.DataFrame(ROWS[name], schema=columns))
    assert png.startswith(PNG)
    assert len(png) < 100_000


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_no_rows_give_an_empty_picture(name: str) -> None:
    assert PLOTS[name].draw(pl.DataFrame(schema=polars_schema(name))).startswith(PNG)
