"""Verdicts beside what happened: settings by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.verdict_audit import COMMON, in_steps, report_settings, verdict_accuracy, verdict_audit

GIB = 2**30
SETTING: dict[str, Any] = {
    "evidence": "decode", "anchor_id": "a", "gpu": "card", "n_gpus": 1, "model": "m",
    "framework": "llama.cpp", "backend": "cuda", "quant": "q", "kv_dtype": "f16", "context_tokens": 4096,
    "outcome": "ran",
    "state": "accepted", "printed_weights_gib": None, "is_cache_stated": True, "is_same_model": True,
    "is_offload_stated": True, "is_over_network": False, "explanation": None, "citation": "c",
    "locator": None,
}  # fmt: skip
SCHEMA = {"printed_weights_gib": pl.Float64, "explanation": pl.String, "locator": pl.String,
          "context_tokens": pl.Int32, "n_gpus": pl.Int16}  # fmt: skip


def audited(
    weights: float,
    cache: float = 1.0,
    share: float | None = None,
    unified: bool = False,
    share_of_free: float | None = None,
    **changes: Any,
) -> pl.DataFrame:
    """The audit of one setting on a card of 24 GiB, 23.5 of them usable, with 0.5 GiB of runtime memory."""
    settings = in_steps(pl.LazyFrame([{**SETTING, **changes}], schema_overrides=SCHEMA)).collect()
    assert set(settings.columns) == set(COMMON)
    settings = settings.with_columns(at_least_gib=pl.lit(0, pl.Int16))
    memory = settings.lazy().with_columns(
        weights_bytes=pl.lit(round(weights * GIB)),
        reserved_bytes=pl.lit(round(cache * GIB)),
        runtime_bytes=pl.lit(GIB // 2),
    )
    formats = pl.LazyFrame(
        {"framework": ["llama.cpp"], "memory_utilization": [share], "share_of_free": [share_of_free]},
        schema_overrides={"memory_utilization": pl.Float64, "share_of_free": pl.Float64},
    )
    gpus = pl.LazyFrame(
        {"gpu": ["card"], "memory_gib": [24.0], "usable_gib": [23.5], "unified_memory": [unified]}
    )
    return verdict_audit(settings.lazy(), memory, memory, memory, formats, gpus).collect()


def test_a_share_of_what_is_free_leaves_the_rest_of_it_free() -> None:
    """18 + 4 + 0.5 of 23.5 GiB fit; a cache of 4 GiB in 0.75 of what is free needs 5.333."""
    assert audited(18.0, 4.0).item(0, "verdict") == "comfortable"
    row = audited(18.0, 4.0, share_of_free=0.75).row(0, named=True)
    assert (row["total_gib"], row["verdict"]) == (22.5, "no_fit")


@pytest.mark.parametrize(
    ("weights", "outcome", "verdict", "agrees"),
    [
        (10.0, "ran", "comfortable", True),
        (21.8, "ran", "tight", True),
        (23.0, "ran", "no_fit", False),
        (23.0, "out_of_memory", "no_fit", True),
        (10.0, "out_of_memory", "comfortable", False),
    ],
)
def test_a_verdict_agrees_when_what_fits_ran_and_what_does_not_failed(
    weights: float, outcome: str, verdict: str, agrees: bool
) -> None:
    row = audited(weights, outcome=outcome).row(0, named=True)
    assert (row["verdict"], row["agrees"]) == (verdict, agrees)
    assert (row["reason"] is None) == agrees
    assert row["total_gib"] == pytest.approx(weights + 1.5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": 22.9, "is_over_network": True}, "over-network"),
        ({"weights": 30.0, "printed_weights_gib": 29.0}, "file-larger-than-memory"),
        ({"weights": 30.0}, "weights-larger-than-memory"),
        ({"weights": 23.0, "printed_weights_gib": 20.0}, "smaller-file-printed"),
        ({"weights": 20.0, "share": 0.8}, "larger-share-of-memory"),
        ({"weights": 22.3, "unified": True}, "raised-system-limit"),
        ({"weights": 20.0, "cache": 4.0, "is_cache_stated": False}, "smaller-cache-possible"),
        ({"weights": 20.0, "cache": 9.0, "is_offload_stated": False}, "offload-not-stated"),
        ({"weights": 20.0, "cache": 9.0, "is_same_model": False}, "other-model-of-the-family"),
        ({"weights": 23.0}, "within-5-percent"),
        ({"weights": 20.0, "cache": 9.0}, "unexplained"),
        ({"weights": 10.0, "outcome": "out_of_memory", "explanation": "a bug"}, "reported-cause"),
        ({"weights": 10.0, "outcome": "out_of_memory", "is_over_network": True}, "unexplained"),
    ],
)
def test_the_first_reason_that_applies(changes: dict[str, Any], reason: str) -> None:
    row = audited(**changes).row(0, named=True)
    assert not row["agrees"]
    assert row["reason"] == reason


def test_unknown_contexts_are_the_shortest_and_others_whole_steps() -> None:
    settings = pl.LazyFrame({"context_tokens": [None, 1, 256, 257]}, schema={"context_tokens": pl.Int32})
    assert in_steps(settings).collect().to_series().to_list() == [256, 256, 256, 512]


def test_the_matrix_counts_every_row_once() -> None:
    rows = pl.concat([audited(10.0), audited(10.0, anchor_id="b"), audited(30.0, anchor_id="c"),
                      audited(20.0, cache=9.0, anchor_id="d")])  # fmt: skip
    matrix = verdict_accuracy(rows.lazy()).collect()
    assert matrix.select("verdict", "rows", "share", "explained_rows", "unexplained_rows").rows() == [
        ("comfortable", 2, 0.5, 0, 0),
        ("no_fit", 2, 0.5, 1, 1),
    ]


@pytest.mark.parametrize(
    ("framework", "stated", "judged"),
    [("vllm", None, 131_072), ("vllm", 4096, 4096), ("lmdeploy", None, None)],
)
def test_without_a_context_an_engine_may_need_the_native_one(
    framework: str, stated: int | None, judged: int | None
) -> None:
    report = {
        "report": "r", "gpu": "card", "n_gpus": 1, "model": "m", "quant": "q", "framework": framework,
        "context_tokens": stated, "outcome": "out_of_memory", "explanation": None, "citation": "c",
        "locator": None,
    }  # fmt: skip
    found = report_settings(
        pl.LazyFrame([report], schema_overrides={"context_tokens": pl.Int32, "explanation": pl.String}),
        pl.LazyFrame({"gpu": ["card"], "vendor": ["nvidia"], "category": ["consumer"]}),
        pl.LazyFrame({"model": ["m"], "native_context_tokens": [131_072]}),
        pl.LazyFrame({"framework": ["vllm", "lmdeploy"], "profile_needs_full_context": [True, None]}),
    ).collect()  # fmt: skip
    assert found.get_column("context_tokens").to_list() == [judged]
