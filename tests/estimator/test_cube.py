"""The rows of one GPU from end to end: memory, verdicts, speeds below their bound, measurements in their
place.
"""

from __future__ import annotations

import io
from typing import Any

import polars as pl
import pytest

from estimator.cube import estimates, published
from estimator.measured import measured_full, measured_start
from estimator.recipes import KEY
from tests.estimator.cube_cases import (
    DENSE,
    GPU,
    STACK_IDS,
    anchor_frame,
    contexts,
    cube_recipes,
    gpu_facts,
    gpu_stacks,
)

SPEEDS = (
    "decode_tok_s_low",
    "decode_tok_s_mid",
    "decode_tok_s_high",
    "decode_tok_s_bound",
    "decode_start_tok_s",
    "decode_start_tok_s_bound",
    "prefill_tok_s",
    "ttft_ms",
)
SETTING = ("n_gpus", "model", "framework", "backend", "quant", "kv_dtype")
Q4_ALONE = (pl.col("quant") == "gguf/q4_k_m") & (pl.col("model") == DENSE) & (pl.col("n_gpus") == 1)


def rows(anchors: pl.LazyFrame | None = None, **facts: Any) -> pl.DataFrame:
    known = anchor_frame().head(0) if anchors is None else anchors
    lengths = contexts(4096, 32768, 131_072).select(pl.col("context_tokens").cast(pl.Int32))
    start, full = (
        measured.drop("gpu").with_columns(STACK_IDS[1]).collect()
        for measured in (measured_start(known), measured_full(known, lengths))
    )
    return estimates(cube_recipes(), gpu_facts(**facts), gpu_stacks(known), start, full).collect()


def one_anchor() -> pl.LazyFrame:
    return anchor_frame({"depth_tokens": 100}, {"depth_tokens": 30_000, "decode_tok_s": 70.0})


def test_every_recipe_has_a_row_in_its_order() -> None:
    assert rows().select(KEY).equals(cube_recipes().select(KEY))
    assert rows(one_anchor()).select(KEY).equals(cube_recipes().select(KEY))
    assert rows().get_column("gpu").unique().to_list() == [GPU]


def test_speeds_are_empty_exactly_where_nothing_fits() -> None:
    found = rows()
    no_fit = found.get_column("verdict") == "no_fit"
    assert 0 < no_fit.sum() < found.height
    for name in SPEEDS:
        assert (found.get_column(name).is_null() == no_fit).all(), name


def test_estimates_keep_their_order_below_the_bound() -> None:
    found = rows(one_anchor()).filter(pl.col("verdict") != "no_fit")
    assert found.select(
        (pl.col("decode_tok_s_low") > 0).all()
        & (pl.col("decode_tok_s_low") <= pl.col("decode_tok_s_mid")).all()
        & (pl.col("decode_tok_s_mid") <= pl.col("decode_tok_s_high")).all()
        & (pl.col("decode_tok_s_high") <= pl.col("decode_tok_s_bound")).all()
        & (pl.col("decode_tok_s_mid") <= pl.col("decode_start_tok_s")).all()
        & (pl.col("decode_start_tok_s") <= pl.col("decode_start_tok_s_bound")).all()
        & (pl.col("decode_tok_s_bound") <= pl.col("decode_start_tok_s_bound")).all()
    ).item()


def test_longer_contexts_are_never_faster_nor_smaller() -> None:
    ordered = rows().with_columns(
        slower=pl.col("decode_tok_s_mid").diff().over(SETTING) <= 0,
        larger=pl.col("total_gib").diff().over(SETTING) >= 0,
    )
    assert ordered.get_column("slower").drop_nulls().all()
    assert ordered.get_column("larger").drop_nulls().all()


def test_verdicts_by_hand() -> None:
    """24 GiB, 23.5 usable: Q4_K_M at 131,072 takes 4.30 + 16 + 0.69 GiB; bf16 (vLLM may use 22.08 GiB) fits
    at 32,768.
    """
    found = rows().filter(pl.col("n_gpus") == 1, pl.col("model") == DENSE)
    verdicts = {
        (row["quant"], row["context_tokens"]): row["verdict"]
        for row in found.with_columns(pl.col("verdict").cast(pl.String)).to_dicts()
    }
    assert verdicts["gguf/q4_k_m", 131_072] == "comfortable"
    assert verdicts["gguf/q4_k_m", 262_144] == "no_fit"
    assert verdicts["native/bf16", 32_768] == "comfortable"  # 14.957 + 4 + 0.735 = 19.69 of 22.08 GiB
    assert verdicts["native/bf16", 131_072] == "no_fit"


def test_windows_leaves_less_and_may_not_exist() -> None:
    tight = rows(usable_windows_gib=21.0).filter(Q4_ALONE, pl.col("context_tokens") == 131_072)
    assert tight.select(pl.col("verdict", "verdict_windows").cast(pl.String)).row(0) == (
        "comfortable",
        "tight",
    )
    assert rows(usable_windows_gib=None).get_column("verdict_windows").null_count() == cube_recipes().height


def test_an_engine_with_a_share_of_memory_has_no_more() -> None:
    """Of 20 GiB vLLM takes 18.4, too little for 19.69; llama.cpp takes what the driver offers."""
    small = rows(memory_gib=20.0).filter(pl.col("n_gpus") == 1, pl.col("model") == DENSE)
    at_32k = small.filter(pl.col("context_tokens") == 32_768)
    verdicts = at_32k.select("quant", pl.col("verdict").cast(pl.String)).rows()
    assert dict(verdicts) == {
        "gguf/q4_k_m": "comfortable", "native/bf16": "no_fit", "awq/int4-g128": "comfortable",
    }  # fmt: skip


def test_measurements_stand_at_their_own_context() -> None:
    """130 tok/s at depth 100 beside every context of that setting; 70 tok/s at depth 30,000 beside 32,768
    alone.
    """
    found = rows(one_anchor())
    mine = found.filter(Q4_ALONE).sort("context_tokens")
    assert mine.get_column("measured_start_tok_s").to_list() == [130.0] * 5
    assert mine.get_column("measured_full_tok_s").to_list() == [None, 70.0, None, None, None]
    assert mine.get_column("n_anchors").to_list() == [1, 2, 1, 1, 1]
    assert mine.get_column("basis").cast(pl.String).to_list() == ["measured"] * 5
    others = found.filter(~Q4_ALONE)
    assert others.get_column("measured_start_tok_s").null_count() == others.height
    assert others.get_column("n_anchors").sum() == 0


def test_the_basis_is_how_near_the_evidence_is() -> None:
    """llama.cpp was measured on this card; vLLM on none."""
    found = (
        rows(one_anchor())
        .filter(~Q4_ALONE)
        .group_by("framework")
        .agg(pl.col("basis").cast(pl.String).unique())
    )
    assert dict(found.rows()) == {"llama.cpp": ["device"], "vllm": ["spec_only"]}
    assert rows().get_column("basis").cast(pl.String).unique().to_list() == ["spec_only"]


def test_a_measured_row_has_the_narrower_interval() -> None:
    measured, device = (
        rows(one_anchor()).filter(where, pl.col("verdict") != "no_fit").select(
            share=pl.col("decode_tok_s_low") / pl.col("decode_tok_s_mid")
        ).to_series().mean()
        for where in (Q4_ALONE, ~Q4_ALONE & (pl.col("framework") == "llama.cpp") & (pl.col("model") == DENSE))
    )  # fmt: skip
    assert measured > device


def test_a_gpu_without_measurements_has_empty_columns_of_the_same_types() -> None:
    without, with_some = rows(), rows(one_anchor())
    assert (
        without.select("measured_start_tok_s", "measured_full_tok_s").null_count().row(0)
        == (without.height,) * 2
    )
    assert without.get_column("n_anchors").unique().to_list() == [0]
    names = ("measured_start_tok_s", "measured_full_tok_s", "n_anchors", "basis", *SPEEDS)
    assert [without.schema[name] for name in names] == [with_some.schema[name] for name in names]


def test_two_calls_give_the_same_bytes() -> None:
    files = []
    for _ in range(2):
        file = io.BytesIO()
        rows(one_anchor()).write_parquet(file)
        files.append(file.getvalue())
    assert files[0] == files[1]


def test_a_well_known_card_and_model() -> None:
    """RTX 4090, Llama-3-8B Q4_K_M, llama.cpp: 130.6 tok/s were measured (XiongjieDai)."""
    found = rows().filter(Q4_ALONE, pl.col("context_tokens") == 4096).row(0, named=True)
    assert found["decode_start_tok_s"] == pytest.approx(130.6, rel=0.1)
    assert found["ttft_ms"] * found["prefill_tok_s"] == pytest.approx(4096 * 1000, rel=0.01)
    # 1008 GB/s over 4.6187 GB, 3 significant figures
    assert found["decode_start_tok_s_bound"] == pytest.approx(218, abs=0.5)


@pytest.mark.parametrize(("value", "expected"), [(1234.0, 1230.0), (0.012345, 0.0123), (99.96, 100.0)])
def test_three_figures_are_published(value: float, expected: float) -> None:
    assert pl.select(published(pl.lit(value))).item() == pytest.approx(expected, rel=1e-6)
