"""Serving recipes and rows of one GPU from end to end."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import polars as pl
import pytest

from estimator.calibration import serving_rates
from estimator.serving_cube import (
    KEY,
    at_size,
    body_active_params,
    mid_output_tokens,
    serving,
    serving_recipes,
)
from tests.estimator.cube_cases import (
    COEFFICIENTS,
    DENSE,
    GPU,
    MOE,
    STACK_IDS,
    anchor_frame,
    cube_formats,
    cube_settings,
    gpu_stacks,
    no_refusals,
    runtime_table,
    two_models,
    weight_table,
)
from tests.estimator.speed_cases import gpu_frame

WORKLOADS = pl.LazyFrame(
    [
        ("1k/1k", 1024, 1024, 1),
        ("1k/1k", 1024, 1024, 16),
        ("1k/1k", 1024, 1024, 4096),
        ("60k/1k", 61_440, 1024, 1),
    ],
    schema={
        "workload": pl.String,
        "input_tokens": pl.Int64,
        "output_tokens": pl.Int64,
        "concurrency": pl.Int32,
    },
    orient="row",
)


@cache
def recipes() -> pl.DataFrame:
    models, layers = two_models()
    formats = cube_formats().filter(pl.col("engine") == "vllm")
    settings = cube_settings().filter(pl.col("framework") == "vllm")
    return (
        serving_recipes(
            formats.drop("quant_citation"),
            settings,
            no_refusals(),
            models,
            layers,
            weight_table(),
            runtime_table(),
            WORKLOADS,
        )
        .with_columns(STACK_IDS)
        .collect()
    )


def rows(**facts: Any) -> pl.DataFrame:
    gpu = {"gpu": GPU, "citation": "techpowerup", "memory_gib": 24.0, "usable_gib": 23.5,
           "bandwidth_gb_s": 1008.0, "link_one_way_gb_s": 31.5} | facts  # fmt: skip
    rates = serving_rates(gpu_frame()).drop("gpu")
    stacks = gpu_stacks(anchor_frame().head(0), "serving")
    return serving(recipes(), gpu, stacks, rates, COEFFICIENTS).collect()


def one(
    quant: str, workload: str, concurrency: int, model: str = DENSE, n_gpus: int = 1, **facts: Any
) -> dict[str, Any]:
    found = rows(**facts).with_columns(pl.col("limited_by").cast(pl.String)).filter(
        pl.col("quant") == quant, pl.col("workload") == workload, pl.col("concurrency") == concurrency,
        pl.col("model") == model, pl.col("n_gpus") == n_gpus,
    )  # fmt: skip
    assert found.height == 1
    return found.row(0, named=True)


def test_requests_longer_than_the_native_context_are_left_out() -> None:
    """61,440 + 1,024 tokens fit 131,072 and not 40,960: 2 quants x 2 counts x (4 + 3) rows."""
    assert recipes().height == 2 * 2 * (4 + 3)
    assert recipes().filter(pl.col("workload") == "60k/1k").get_column("model").unique().to_list() == [DENSE]
    assert recipes().select(KEY).equals(recipes().select(KEY).unique().sort(KEY))


def test_bytes_of_one_request_by_hand() -> None:
    """131,072 bytes per token halfway through the answer: 1,024 + 512 tokens; weights of all GPUs:
    16,060,522,496.
    """
    found = recipes().filter(
        pl.col("model") == DENSE, pl.col("quant") == "native/bf16", pl.col("workload") == "1k/1k",
        pl.col("n_gpus") == 2, pl.col("concurrency") == 1,
    ).row(0, named=True)  # fmt: skip
    assert found["kv_sequence_bytes"] == found["kv_step_bytes"] == 1536 * 131_072
    assert found["weights_bytes"] == pytest.approx(16_060_522_496, rel=1e-6)
    assert found["body_active_params"] == pytest.approx(6_979_588_096, rel=1e-6)
    # 4 x 32 layers x 32 heads x 128 x 1024^2 / 2
    assert found["attention_prefill_flops"] == pytest.approx(4 * 32 * 32 * 128 * 1024**2 / 2, rel=1e-6)


def test_midway_and_body() -> None:
    frame = pl.DataFrame({"input_tokens": [1000], "output_tokens": [101]})
    assert frame.select(mid_output_tokens()).item() == 1050
    heads = pl.DataFrame({"is_tied": [True, False], "embedding_params": [10, 10], "head_params": [0, 20],
                          "active_params": [100, 100]})  # fmt: skip
    assert heads.select(body_active_params()).to_series().to_list() == [90, 80]


def test_every_recipe_has_a_row_in_its_order() -> None:
    assert rows().select(KEY).equals(recipes().select(KEY))
    assert rows().get_column("gpu").unique().to_list() == [GPU]
    assert rows().select("limited_by", "max_concurrency", "basis").null_count().sum_horizontal().item() == 0


def test_nothing_is_served_where_nothing_fits() -> None:
    """Qwen3-30B-A3B in bf16 takes 57 GiB; a 24 GiB card holds none of it."""
    found = one("native/bf16", "1k/1k", 1, MOE)
    assert (found["limited_by"], found["max_concurrency"]) == ("memory", 0)
    for name in (
        "output_tok_s_low",
        "output_tok_s_mid",
        "output_tok_s_high",
        "output_tok_s_per_request",
        "ttft_ms",
        "tpot_ms",
    ):
        nothing = rows().filter(pl.col(name).is_null()).select(KEY)
        assert nothing.equals(rows().filter(pl.col("limited_by") == "memory").select(KEY)), name


def test_the_pool_by_hand() -> None:
    """24 x 0.92 GiB - 0.79 GB of runtime - 16.06 GB = 6.862 GB over 0.2013 GB a request: 34."""
    runtime = (204.8 + 368.64) * 2**20 + 2 * 2048 * 4096 * 11
    pool = 24 * 0.92 * 2**30 - runtime - 16_060_522_496
    found = one("native/bf16", "1k/1k", 4096)
    assert found["max_concurrency"] == int(pool / (1536 * 131_072)) == 34
    assert found["limited_by"] == "capacity"
    assert one("native/bf16", "1k/1k", 16)["limited_by"] in ("bandwidth", "compute")


def test_a_larger_step_takes_more_runtime_memory() -> None:
    """Rows, their order and everything but runtime memory stay."""
    more = recipes().select("model", "framework", "n_gpus").unique().with_columns(
        at_least_gib=pl.lit(70, pl.Int16), extra_bytes=pl.lit(4 * 2**30)
    )  # fmt: skip
    steps = pl.DataFrame(
        {"framework": ["vllm"], "at_least_gib": [70]}, schema_overrides={"at_least_gib": pl.Int16}
    )
    larger = at_size(recipes(), steps, more)
    assert larger.drop("runtime_bytes").equals(recipes().drop("runtime_bytes"))
    rise = larger.get_column("runtime_bytes") - recipes().get_column("runtime_bytes")
    assert rise.min() == rise.max() == 4 * 2**30
    assert at_size(recipes(), steps.clear(), more).equals(recipes())


def test_speeds_keep_their_order_and_are_positive() -> None:
    found = rows().drop_nulls("output_tok_s_mid")
    assert found.height > 0
    assert found.select(
        (pl.col("output_tok_s_low") > 0).all()
        & (pl.col("output_tok_s_low") <= pl.col("output_tok_s_mid")).all()
        & (pl.col("output_tok_s_mid") <= pl.col("output_tok_s_high")).all()
        & (pl.col("output_tok_s_per_request") <= pl.col("output_tok_s_mid")).all()
        & (pl.col("ttft_ms") > 0).all()
        & (pl.col("tpot_ms") > 0).all()
    ).item()


def test_more_requests_give_more_together_and_less_each() -> None:
    """Until the pool is full, after which more requests only wait."""
    alone, some, many = (one("awq/int4-g128", "1k/1k", n) for n in (1, 16, 4096))
    assert alone["output_tok_s_mid"] < some["output_tok_s_mid"] < many["output_tok_s_mid"]
    assert alone["output_tok_s_per_request"] > some["output_tok_s_per_request"]
    assert alone["ttft_ms"] < some["ttft_ms"] < many["ttft_ms"]
    assert some["tpot_ms"] == pytest.approx(1000 / some["output_tok_s_per_request"], rel=0.01)


def test_a_second_gpu_holds_more_requests() -> None:
    assert one("native/bf16", "1k/1k", 16, n_gpus=2)["max_concurrency"] > 34
    assert (
        one("native/bf16", "1k/1k", 16, n_gpus=2)["output_tok_s_mid"]
        > one("native/bf16", "1k/1k", 16)["output_tok_s_mid"]
    )


def test_without_a_link_several_gpus_have_no_speed() -> None:
    assert one("native/bf16", "1k/1k", 16, n_gpus=2, link_one_way_gb_s=None)["output_tok_s_mid"] is None
    assert one("native/bf16", "1k/1k", 16, link_one_way_gb_s=None)["output_tok_s_mid"] > 0


def test_two_calls_give_the_same_bytes() -> None:
    files = []
    for _ in range(2):
        file = io.BytesIO()
        rows().write_parquet(file)
        files.append(file.getvalue())
    assert files[0] == files[1]


def test_an_engine_never_uses_more_than_the_driver_offers() -> None:
    """Unified memory: 0.92 of 24 GiB would be 22 GiB, but the system leaves 12."""
    free, tight = rows(), rows(usable_gib=12.0)
    assert (tight.get_column("max_concurrency") <= free.get_column("max_concurrency")).all()
    assert tight.get_column("max_concurrency").sum() < free.get_column("max_concurrency").sum()
    assert rows(usable_gib=None).equals(rows(usable_gib=24.0))
