"""Shares of resolved rows, by hand."""

from __future__ import annotations

import polars as pl

from estimator.anchor_resolution import anchor_resolution

IDS = ("gpu", "model", "quant", "framework")


def rows(*states: tuple[str, str, str | None]) -> pl.LazyFrame:
    """One row per (publisher, state, quant)."""
    return pl.LazyFrame(
        [
            {"publisher": publisher, "state": state} | dict.fromkeys(IDS, "known") | {"quant": quant}
            for publisher, state, quant in states
        ]
    )


def test_shares_by_publisher_and_for_the_whole_set() -> None:
    """Three decode rows of two publishers, one without a known quant: 2 of 3 resolve."""
    decode = rows(("a", "accepted", "q"), ("a", "unresolved", None), ("b", "flagged", "q"))
    serving = rows(("c", "accepted", "q"))
    found = anchor_resolution(decode, serving).collect()
    assert found.filter(publisher="all", anchor_set="decode").rows() == [
        ("decode", "all", 3, 2, 1, 1, 1, 66.67)
    ]
    assert found.filter(publisher="a").rows() == [("decode", "a", 2, 1, 1, 0, 1, 50.0)]
    assert found.filter(anchor_set="serving").get_column("resolved_percent").to_list() == [100.0, 100.0]
