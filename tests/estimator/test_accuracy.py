"""Errors over hand-made residuals."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.accuracy import accuracy
from estimator.residuals import ABOVE_BOUND

RESIDUAL: dict[str, Any] = {
    "metric": "decode_tok_s",
    "gpu": "card",
    "n_gpus": 1,
    "model": "dense",
    "framework": "llama.cpp",
    "backend": "cuda",
    "quant": "gguf/q4_k_m",
    "kv_dtype": "f16",
    "depth_tokens": 100,
    "concurrency": 1,
    "ratio": 1.0,
    "is_within_interval": True,
    "is_above_bound": False,
    "basis": "device",
    "state": "accepted",
    "reason": None,
}
GPUS = pl.LazyFrame(
    {"gpu": ["card", "other"], "family": ["nv-ada", "amd-cdna3"], "vendor": ["nvidia", "amd"]}
)
MODELS = pl.LazyFrame({"model": ["dense", "moe"], "is_moe": [False, True]})
QUANTS = pl.LazyFrame({"quant": ["gguf/q4_k_m", "native/bf16"], "quant_class": ["q4k", "16bit"]})


def judged(*changes: dict[str, Any]) -> pl.DataFrame:
    rows = pl.LazyFrame(
        [RESIDUAL | change for change in changes], schema_overrides={"ratio": pl.Float64, "reason": pl.String}
    )
    return accuracy(rows, GPUS, MODELS, QUANTS).collect()


def part(frame: pl.DataFrame, name: str, value: str) -> dict[str, Any]:
    return frame.row(by_predicate=(pl.col("slice") == name) & (pl.col("value") == value), named=True)


def test_errors_by_hand() -> None:
    """Ratios 0.8, 1.1, 1.5: errors 20, 10, 50 %; median 20; 90th percentile 20 + 0.8 x 30 = 44."""
    found = judged(*[{"depth_tokens": at, "ratio": ratio} for at, ratio in enumerate((0.8, 1.1, 1.5))])
    row = part(found, "all", "all")
    assert (row["n_anchors"], row["n_cells"], row["n_devices"]) == (3, 3, 1)
    assert row["median_ratio"] == 1.1
    assert row["median_absolute_error_percent"] == 20.0
    assert row["p90_absolute_error_percent"] == 44.0


def test_a_cell_counts_once() -> None:
    """Three repeats of one setting (median 2.0) and one other cell (1.0): median of two cells is 1.5."""
    repeats = [{"ratio": ratio} for ratio in (1.9, 2.0, 5.0)]
    row = part(judged(*repeats, {"depth_tokens": 5000}), "all", "all")
    assert (row["n_anchors"], row["n_cells"]) == (4, 2)
    assert row["median_ratio"] == 1.5
    assert row["median_absolute_error_percent"] == 50.0


@pytest.mark.parametrize(
    "change",
    [{"gpu": "other"}, {"n_gpus": 2}, {"model": "moe"}, {"framework": "ollama"}, {"backend": "vulkan"},
     {"quant": "native/bf16"}, {"kv_dtype": "q8_0"}, {"depth_tokens": 101}, {"concurrency": 8}],
)  # fmt: skip
def test_another_setting_is_another_cell(change: dict[str, Any]) -> None:
    assert part(judged({}, change), "all", "all")["n_cells"] == 2


def test_only_accepted_measurements_with_an_estimate_count() -> None:
    found = judged({}, {"state": "flagged", "ratio": 9.0}, {"ratio": None, "depth_tokens": 7})
    assert part(found, "all", "all")["n_anchors"] == 1


def test_shares_within_and_above() -> None:
    """Cells: half inside (2 repeats), inside, outside, outside: (0.5 + 1 + 0 + 0) / 4; one of four above the
    bound.
    """
    found = judged(
        {}, {"is_within_interval": False}, {"depth_tokens": 1},
        {"depth_tokens": 2, "is_within_interval": False, "is_above_bound": True},
        {"depth_tokens": 3, "is_within_interval": False},
    )  # fmt: skip
    row = part(found, "all", "all")
    assert row["within_interval_percent"] == 37.5
    assert row["above_bound_percent"] == 25.0


def test_metrics_without_a_bound_have_no_share_above_it() -> None:
    row = part(judged({"metric": "prefill_tok_s", "is_above_bound": None}), "all", "all")
    assert row["above_bound_percent"] is None
    assert row["within_interval_percent"] == 100.0


def test_slices() -> None:
    found = judged(
        {},
        {
            "gpu": "other",
            "model": "moe",
            "quant": "native/bf16",
            "n_gpus": 8,
            "depth_tokens": 6000,
            "basis": "family",
            "ratio": 2.0,
        },
    )
    groups = {
        name: set(found.filter(pl.col("slice") == name).get_column("value"))
        for name in found.get_column("slice")
    }
    assert groups == {
        "all": {"all"},
        "framework": {"llama.cpp"},
        "backend": {"cuda"},
        "gpu_vendor": {"nvidia", "amd"},
        "gpu_family": {"nv-ada", "amd-cdna3"},
        "quant_class": {"q4k", "16bit"},
        "model_kind": {"dense", "moe"},
        "basis": {"device", "family"},
        "depth": {"under 1,500", "6,000 and more"},
        "gpu_count": {"one", "several"},
    }
    assert part(found, "model_kind", "moe")["median_ratio"] == 2.0
    assert part(found, "gpu_count", "one")["median_ratio"] == 1.0
    assert found.get_column("split").unique().to_list() == ["in_sample"]


@pytest.mark.parametrize(
    ("depth", "band"),
    [(1499, "under 1,500"), (1500, "1,500 to 6,000"), (5999, "1,500 to 6,000"), (6000, "6,000 and more")],
)
def test_depth_bands(depth: int, band: str) -> None:
    assert part(judged({"depth_tokens": depth}), "depth", band)["n_cells"] == 1


def test_metrics_are_kept_apart_and_rows_sorted() -> None:
    found = judged({"ratio": 1.2}, {"metric": "output_tok_s", "ratio": 3.0})
    assert found.filter(pl.col("slice") == "all").select("metric", "median_ratio").rows() == [
        ("decode_tok_s", 1.2),
        ("output_tok_s", 3.0),
    ]
    key = ["metric", "split", "slice", "value"]
    assert found.equals(found.sort(key))


def test_order_of_the_residuals_does_not_matter() -> None:
    rows = [
        {"depth_tokens": at % 7, "ratio": 0.7 + at / 10, "is_within_interval": at % 3 > 0} for at in range(20)
    ]
    assert judged(*rows).equals(judged(*reversed(rows)))


def test_what_is_above_the_bound_counts_there_and_nowhere_else() -> None:
    """Of two cells one was flagged for the bound alone: 50 % above it, and its ratio of 9 is in no error."""
    above = {
        "ratio": 9.0,
        "depth_tokens": 7,
        "state": "flagged",
        "reason": ABOVE_BOUND,
        "is_above_bound": True,
    }
    row = part(judged({}, above), "all", "all")
    assert (row["n_anchors"], row["n_cells"], row["above_bound_percent"]) == (1, 1, 50.0)
    assert row["median_absolute_error_percent"] == 0.0
