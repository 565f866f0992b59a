"""What larger GPUs take, SGLang's reserve and the constants' places, against the engines' own rules."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.engine_runtime import runtime_steps, steps_by_memory
from tests.estimator.cube_cases import COEFFICIENTS, RESERVES, counts

MIB = 2**20
SGLANG: dict[str, Any] = {
    **dict.fromkeys(RESERVES), "framework": "sglang", "activation_rule": "sglang_reserve",
    "parallel_mode": "tensor", "framework_citation": "c", "profile_batch_tokens": None,
    "reserve_base_mib": 512.0, "reserve_per_prefill_token_mib": 1.5, "reserve_per_gpu_mib": 128.0,
    "reserve_per_graph_batch_mib": 2.0, "reserve_per_prefill_graph_mib": 8.0,
    "reserve_latent_graphs_mib": 1536.0, "reserve_floor_mib": 10_240.0, "reserve_floor_above_gib": 60.0,
}  # fmt: skip
VLLM = {**SGLANG, **dict.fromkeys(RESERVES), "framework": "vllm", "activation_rule": "vllm_activation"}
STEPS = pl.LazyFrame(
    [
        ("sglang", "prefill_tokens", 0.0, 2048.0), ("sglang", "prefill_tokens", 20.0, 4096.0),
        ("sglang", "prefill_tokens", 60.0, 8192.0), ("sglang", "max_graph_batch", 0.0, 8.0),
        ("sglang", "max_graph_batch", 20.0, 48.0), ("sglang", "max_graph_batch", 35.0, 32.0),
        ("sglang", "max_graph_batch", 60.0, 256.0), ("sglang", "max_graph_batch_from_4_gpus", 0.0, 8.0),
        ("sglang", "max_graph_batch_from_4_gpus", 20.0, 160.0), ("sglang", "prefill_graphs", 0.0, 42.0),
        ("sglang", "prefill_graphs", 20.0, 50.0), ("sglang", "prefill_graphs", 60.0, 58.0),
        ("vllm", "prefill_tokens", 0.0, 2048.0), ("vllm", "prefill_tokens", 70.0, 8192.0),
    ],
    schema=["framework", "setting", "at_least", "value"],
    orient="row",
).with_columns(depends_on=pl.lit("memory_gib"))  # fmt: skip
FACTS = {**dict.fromkeys(RESERVES, pl.Float64), "profile_batch_tokens": pl.Int64}


def extra_mib(
    engine: dict[str, Any], n_gpus: int = 1, width: float = 8192.0, absorbed: float = 0.0
) -> dict[int, float]:
    shapes = pl.LazyFrame(
        {"model": ["m"], "is_moe": [False], "attention_width": [width], "absorbed_width": [absorbed]}
    )
    frameworks = pl.LazyFrame([engine], schema_overrides=FACTS)
    found = runtime_steps(shapes, frameworks, counts(n_gpus), STEPS, COEFFICIENTS).collect()
    return {row["at_least_gib"]: row["extra_bytes"] / MIB for row in found.iter_rows(named=True)}


def test_every_threshold_holds_the_latest_value_of_every_setting() -> None:
    found = steps_by_memory(STEPS).filter(pl.col("framework") == "sglang").sort("at_least_gib").collect()
    assert found.get_column("at_least_gib").to_list() == [0.0, 20.0, 35.0, 60.0]
    assert found.get_column("prefill_tokens").to_list() == [2048.0, 4096.0, 4096.0, 8192.0]
    assert found.get_column("max_graph_batch").to_list() == [8.0, 48.0, 32.0, 256.0]
    assert found.get_column("prefill_graphs").to_list() == [42.0, 50.0, 50.0, 58.0]


def test_vllm_computes_four_times_the_tokens_from_70_gib_on() -> None:
    """2 bytes x 8,192 wide x 11 x (8,192 - 2,048) tokens on one GPU, x 5 on four."""
    assert extra_mib(VLLM) == {70: 2 * 8192 * 11 * 6144 / MIB}
    assert extra_mib(VLLM, n_gpus=4) == {70: 2 * 8192 * 5 * 6144 / MIB}


@pytest.mark.parametrize(
    ("n_gpus", "absorbed", "from_20", "from_60"),
    [
        # 512 + 1.5 x tokens + 128 + 2 x batch + 8 x graphs, less that of the smallest; the floor of 10 GiB
        pytest.param(1, 0.0, 3072 + 80 + 64, 512 + 12_288 + 128 + 512 + 464 - 4064, id="one GPU"),
        pytest.param(4, 0.0, 3072 + 304 + 64, 512 + 12_288 + 512 + 320 + 464 - 4448, id="four GPUs"),
        pytest.param(1, 1.0, 3072 + 80, 6144 + 3072 + 496, id="latent attention"),
    ],
)
def test_sglang_reserves_more_on_larger_gpus(
    n_gpus: int, absorbed: float, from_20: float, from_60: float
) -> None:
    found = extra_mib(SGLANG, n_gpus, absorbed=absorbed)
    assert found[20] == from_20
    assert found[60] == from_60
    if n_gpus == 1:
        assert found[35] == from_20 - 32  # the captured batch is smaller from 35 GiB on


def test_large_gpus_have_a_floor() -> None:
    small = {**SGLANG, "reserve_per_prefill_token_mib": 0.1}
    base = 512 + 0.1 * 2048 + 128 + 16 + 336
    assert extra_mib(small)[60] == pytest.approx(10_240 - base, abs=1e-3)


def test_engines_of_another_rule_have_no_steps() -> None:
    assert extra_mib({**VLLM, "activation_rule": "none"}) == {}


@settings(max_examples=20)
@given(width=st.integers(1, 40_000), n_gpus=st.sampled_from([1, 2, 4, 8]))
def test_activations_never_fall_with_memory(width: int, n_gpus: int) -> None:
    assert extra_mib(VLLM, n_gpus, float(width))[70] >= 0
