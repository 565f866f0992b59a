"""How many measured rows say what they measured: the share whose names resolve, and what became of them."""

from __future__ import annotations

import polars as pl

NAMED = ("gpu", "model", "quant", "framework")
STATES = ("accepted", "flagged", "unresolved")


def anchor_resolution(anchors: pl.LazyFrame, serving_anchors: pl.LazyFrame) -> pl.LazyFrame:
    """The table `anchor_resolution`: set (decode, serving) x publisher, and `all` for a whole set.

    Reads publisher, state and the resolved ids of the two anchor tables. Out: anchors (rows), resolved (rows
    with every name known), accepted, flagged, unresolved, resolved_percent.
    """
    sets = {"decode": anchors, "serving": serving_anchors}
    rows = pl.concat(
        rows.select(
            pl.lit(name).alias("anchor_set"),
            "publisher",
            is_resolved=pl.all_horizontal(pl.col(NAMED).is_not_null()),
            state=pl.col("state").cast(pl.String),
        )
        for name, rows in sets.items()
    )
    whole = rows.with_columns(publisher=pl.lit("all"))
    return (
        pl.concat([rows, whole])
        .group_by("anchor_set", "publisher")
        .agg(
            pl.len().cast(pl.Int32).alias("anchors"),
            pl.col("is_resolved").sum().cast(pl.Int32).alias("resolved"),
            *[(pl.col("state") == state).sum().cast(pl.Int32).alias(state) for state in STATES],
        )
        .with_columns(resolved_percent=(100 * pl.col("resolved") / pl.col("anchors")).round(2))
        .sort("anchor_set", "publisher")
    )
