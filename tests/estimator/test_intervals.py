"""Better evidence gives a narrower interval, and every interval holds its estimate."""

from __future__ import annotations

import polars as pl
import pytest

from estimator.intervals import BASES, basis, high, interval_table, low
from tests.estimator.speed_cases import coefficients

COEFFICIENTS = coefficients()
FLAGS = ("has_anchor_at_key", "device_has_anchor_for_engine", "family_known", "engine_known")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((True, True, True, True), "measured"),
        ((False, True, False, False), "device"),
        ((False, False, True, True), "family"),
        ((False, False, False, True), "engine"),
        ((False, False, True, False), "spec_only"),
        ((None, None, None, None), "spec_only"),
    ],
)
def test_basis_takes_the_best_evidence(flags: tuple[bool | None, ...], expected: str) -> None:
    frame = pl.DataFrame(
        dict(zip(FLAGS, ([flag] for flag in flags), strict=True)), schema=dict.fromkeys(FLAGS, pl.Boolean)
    )
    assert frame.select(basis().alias("basis")).item() == expected


@pytest.mark.parametrize("quantity", ["decode", "prefill", "serving"])
def test_intervals_hold_the_estimate_and_widen(quantity: str) -> None:
    table = interval_table(COEFFICIENTS, quantity)
    assert table.height == 5 * 13 * 2
    assert table.filter((pl.col("interval_low") > 1) | (pl.col("interval_high") < 1)).is_empty()
    width = (pl.col("interval_high") / pl.col("interval_low")).alias("width")
    for (_, _), group in table.with_columns(width).group_by("backend", "is_moe"):
        widths = dict(group.select(pl.col("basis").cast(pl.String), "width").iter_rows())
        assert [widths[name] for name in BASES] == sorted(widths.values())


def test_published_widths_come_back() -> None:
    table = interval_table(COEFFICIENTS).with_columns(pl.col("basis").cast(pl.String))

    def width(**key: object) -> float:
        row = table.filter(*(pl.col(name) == value for name, value in key.items())).row(0, named=True)
        return row["interval_high"] / row["interval_low"]

    assert width(basis="device", backend="sycl", is_moe=False) == pytest.approx(2.11, rel=2e-3)
    assert width(basis="family", backend="sycl", is_moe=True) == pytest.approx(2.61, rel=2e-3)
    # 80 % width 1.49 of dense CUDA models, widened like 1.94 -> 2.61
    assert width(basis="family", backend="cuda", is_moe=False) == pytest.approx(1.49**1.448, rel=2e-3)


def test_missing_basis_is_named() -> None:
    with pytest.raises(KeyError, match="decode_low for engine"):
        interval_table(COEFFICIENTS.filter(pl.col("level") != "engine"))


def test_upper_end_stops_at_the_bound() -> None:
    frame = pl.DataFrame({"decode_tok_s_mid": [100.0, 100.0], "decode_tok_s_bound": [120.0, 300.0],
                          "interval_low": [0.5, 0.5], "interval_high": [2.0, 2.0]})  # fmt: skip
    assert frame.select(low()).to_series().to_list() == [50.0, 50.0]
    assert frame.select(high()).to_series().to_list() == [120.0, 200.0]
    assert frame.select(high(bound=None)).to_series().to_list() == [200.0, 200.0]
