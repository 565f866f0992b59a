"""Verdicts at their thresholds, and totals that are the sum of their published parts."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.capacity import (
    VERDICT_TYPE,
    claimed_gib,
    engine_usable_gib,
    gib,
    tight_above_gib,
    total_gib,
    verdict,
)


def verdicts(totals: Sequence[float], usable: float | None) -> list[str | None]:
    frame = pl.DataFrame({"total": totals}, schema={"total": pl.Float64})
    found = frame.select(verdict(pl.col("total"), pl.lit(usable, dtype=pl.Float64)))
    assert found.dtypes == [VERDICT_TYPE]
    return found.to_series().to_list()


def test_small_memory_keeps_half_a_gib() -> None:
    """8 GiB: 3 % would be 0.24, so 0.5 GiB counts."""
    assert verdicts([1.0, 7.5, 7.501, 8.0, 8.001], 8.0) == ["comfortable"] * 2 + ["tight"] * 2 + ["no_fit"]


def test_large_memory_keeps_three_percent() -> None:
    """100 GiB: 3 GiB."""
    assert verdicts([97.0, 97.001, 100.0, 100.001], 100.0) == ["comfortable", "tight", "tight", "no_fit"]


def test_without_usable_memory_there_is_no_verdict() -> None:
    assert verdicts([1.0, 1000.0], None) == [None, None]


@pytest.mark.parametrize(
    ("usable", "memory", "utilization", "expected"),
    [
        (23.5, 24.0, None, 23.5),  # takes what it needs
        (23.5, 24.0, 0.92, 22.08),  # a share of all memory
        (18.0, 24.0, 0.92, 18.0),  # never more than the driver offers
        (23.5, 24.0, 1.0, 23.5),
        (None, 24.0, 0.92, None),  # no such system: no memory to use
        (None, 24.0, None, None),
    ],
)
def test_engines_take_their_share(
    usable: float | None, memory: float, utilization: float | None, expected: float | None
) -> None:
    frame = pl.DataFrame({"memory_utilization": [utilization]}, schema={"memory_utilization": pl.Float64})
    found = frame.select(
        engine_usable_gib(pl.lit(usable, dtype=pl.Float64), pl.lit(memory, dtype=pl.Float64))
    ).item()
    assert found == (None if expected is None else pytest.approx(expected))


def test_bytes_are_published_to_a_thousandth_of_a_gib() -> None:
    """4,618,693,018 bytes / 2^30 = 4.3015 GiB."""
    assert pl.DataFrame({"b": [4_618_693_018]}).select(gib("b")).item() == 4.301


@pytest.mark.parametrize(
    ("share", "expected"),
    [(None, 30.0), (0.9, 31.0), (0.8, 32.25), (1.0, 30.0)],
)
def test_a_cache_of_9_gib_claims_its_share_of_what_is_free(share: float | None, expected: float) -> None:
    frame = pl.DataFrame({"total_gib": [30.0], "kv_cache_gib": [9.0], "share_of_free": [share]},
                         schema_overrides={"share_of_free": pl.Float64})  # fmt: skip
    assert frame.select(claimed_gib()).item() == pytest.approx(expected)


PARTS = st.integers(0, 2**40)


@given(weights=PARTS, cache=PARTS, rest=PARTS)
def test_a_total_is_the_sum_of_what_is_published(weights: int, cache: int, rest: int) -> None:
    columns = {"weights_gib": [weights], "kv_cache_gib": [cache], "runtime_gib": [rest]}
    published = pl.DataFrame(columns).select(gib(name).alias(name) for name in columns)
    total = published.select(total_gib()).item()
    assert round(1000 * total) == sum(round(1000 * value) for value in published.row(0))
    assert total == pytest.approx((weights + cache + rest) / 2**30, abs=0.0016)


@given(usable=st.floats(0.5, 2000), total=st.floats(0.01, 4000))
def test_verdicts_agree_with_their_thresholds(usable: float, total: float) -> None:
    threshold = pl.select(tight_above_gib(pl.lit(usable))).item()
    expected = "no_fit" if total > usable else "tight" if total > threshold else "comfortable"
    assert threshold < usable
    assert verdicts([total], usable) == [expected]
