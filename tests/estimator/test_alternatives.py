"""The one change that makes a row fit, against a search over all rows."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.alternatives import CHANGES, COLUMNS, alternatives, candidates

QUANTS = ("q2", "q4", "q8")
CACHES = ("f16", "q8_0")
N_GPUS = (1, 2, 4)
KEY = ["model", "framework", "backend", "quant", "kv_dtype", "n_gpus", "context_tokens"]


def recipes(totals: list[float], kept: list[bool]) -> pl.DataFrame:
    """Every combination of two models, quants, caches and counts at two contexts, as far as `kept`."""
    rows = pl.DataFrame({"model": ["a", "b"], "framework": "f", "backend": "cuda"})
    for name, values in (
        ("quant", QUANTS),
        ("kv_dtype", CACHES),
        ("n_gpus", N_GPUS),
        ("context_tokens", (4096, 8192)),
    ):
        rows = rows.join(pl.DataFrame({name: values}), how="cross", maintain_order="left_right")
    return rows.with_columns(
        total_gib=pl.Series([totals[at % len(totals)] for at in range(rows.height)], dtype=pl.Float32)
    ).filter(pl.Series([kept[at % len(kept)] for at in range(rows.height)]))


def searched(rows: pl.DataFrame, usable: float) -> list[tuple[object, ...]]:
    """As the rules say it, one row after the other."""
    records = rows.to_dicts()
    found = []
    for own in records:
        if own["total_gib"] <= usable:
            found.append((None, None, None, None))
            continue
        best: dict[str, object] = {}
        for changed in CHANGES:
            others = [
                one
                for one in records
                if one["total_gib"] <= usable
                and all(one[name] == own[name] for name in KEY if name != changed)
            ]
            if changed == "n_gpus":
                more = [one["n_gpus"] for one in others if one["n_gpus"] > own["n_gpus"]]
                best[changed] = min(more, default=None)
            else:
                largest = max((one["total_gib"] for one in others), default=None)
                best[changed] = next((one[changed] for one in others if one["total_gib"] == largest), None)
        first = next((name for name in CHANGES if best[name] is not None), "nothing")
        found.append((first, *(best[name] for name in CHANGES)))
    return found


# different totals: which of two equal ones is named does not matter to anyone
totals = st.lists(st.integers(1, 400), min_size=7, max_size=71, unique=True).map(
    lambda values: [value / 4 for value in values]
)


@settings(deadline=None, max_examples=60)
@given(totals, st.lists(st.booleans(), min_size=1, max_size=13).filter(any), st.floats(0, 110, width=32))
def test_as_a_search_over_all_rows_says(values: list[float], kept: list[bool], usable: float) -> None:
    rows = recipes(values, kept)
    repeated = rows.group_by([name for name in KEY if name not in ("quant", "kv_dtype")]).agg(
        pl.col("total_gib").is_duplicated().any()
    )
    if repeated.get_column("total_gib").any():
        rows = rows.with_columns(total_gib=pl.col("total_gib") + pl.int_range(pl.len()) / 1024)
    fits = rows.get_column("total_gib") <= usable
    assert alternatives(rows, candidates(rows), fits).rows() == searched(rows, usable)


def test_the_gentlest_change_comes_first() -> None:
    rows = recipes([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0], [True])
    found = alternatives(rows, candidates(rows), rows.get_column("total_gib") <= 5.0)
    assert found.columns == list(COLUMNS)
    every = set(found.get_column("fits_with").drop_nulls())
    assert "kv_dtype" in every
    with_cache = found.filter(pl.col("fits_with_kv_dtype").is_not_null())
    assert set(with_cache.get_column("fits_with")) == {"kv_dtype"}


def test_rows_that_all_fit_or_none_need_or_find_nothing() -> None:
    rows = recipes([1.0], [True])
    all_fit = alternatives(rows, candidates(rows), pl.Series([True] * rows.height))
    assert all_fit.null_count().row(0) == (rows.height,) * len(COLUMNS)
    none_fits = alternatives(rows, candidates(rows), pl.Series([False] * rows.height))
    assert set(none_fits.get_column("fits_with")) == {"nothing"}
