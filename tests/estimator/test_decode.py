"""Time per token by hand, against measurements, and in the direction physics says."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.bound import bound_work, decode_tok_s_bound
from estimator.calibration import gpu_coefficients, recipe_coefficients
from estimator.decode import decode_s, decode_tok_s, decode_work
from estimator.intervals import high, low
from tests.estimator.speed_cases import coefficients, gpu_frame, recipe_frame

COEFFICIENTS = coefficients()
BYTES = st.floats(1e6, 1e12)


def speeds(gpu: pl.DataFrame, *changes: dict[str, Any]) -> list[dict[str, float]]:
    row = gpu_coefficients(gpu, COEFFICIENTS).filter(pl.col("backend") == "cuda").row(0, named=True)
    return (
        recipe_coefficients(recipe_frame(*changes), COEFFICIENTS)
        .with_columns(*decode_work(COEFFICIENTS), *bound_work())
        .select(
            decode_s("full", row).alias("full_s"),
            decode_s("start", row).alias("start_s"),
            decode_tok_s("full", row).alias("decode_tok_s_mid"),
            decode_tok_s("start", row).alias("start"),
            decode_tok_s_bound("full", row).alias("decode_tok_s_bound"),
            decode_tok_s_bound("start", row).alias("start_bound"),
            pl.lit(0.6).alias("interval_low"),
            pl.lit(1.7).alias("interval_high"),
        )
        .with_columns(low().alias("low"), high().alias("high"))
        .collect()
        .to_dicts()
    )


def test_one_card_by_hand() -> None:
    """RTX 4090, Llama-3-8B Q4_K_M (4.6175 GB read), llama.cpp, 4096 tokens.

    layers   32 x 115.6795 us x 0.6735                                        = 2.4931 ms
    weights  4.6175e9 / (0.9774 x 0.8016 x 0.9952 x 1.0247 x 1.3917 x 1008e9) = 4.1196 ms
    clock    4.6175e9 / (16.5954 x 1.1782 x 128 x 2.52e9)                     = 0.7321 ms
    cache    4096 x 131072 / (0.4875 x 2.0572 x 1008e9)                       = 0.5311 ms
    """
    row = speeds(gpu_frame())[0]
    assert row["start_s"] * 1e3 == pytest.approx(2.4931 + 4.1196 + 0.7321, rel=1e-4)
    assert row["full_s"] * 1e3 == pytest.approx(2.4931 + 4.1196 + 0.7321 + 0.5311, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "measured"),
    [
        ({}, 130.6),  # Q4_K_M, 512 tokens generated (XiongjieDai, RTX 4090)
        ({"quant_class": "16bit", "dense_read_bytes": 15.01e9}, 54.8),  # F16
        ({"parallel_mode": "layer", "n_gpus": 2}, 124.7),
        ({"parallel_mode": "layer", "n_gpus": 8}, 118.1),
    ],
)
def test_measured_speeds_are_met_within_a_quarter(change: dict[str, Any], measured: float) -> None:
    assert speeds(gpu_frame(), change)[0]["start"] == pytest.approx(measured, rel=0.25)


def test_experts_stream_slower_and_cost_time_per_layer() -> None:
    change = {"expert_read_bytes": 1e9, "dense_read_bytes": 1e9, "n_moe_layers": 30, "n_linear_layers": 10}
    work = recipe_coefficients(recipe_frame(change), COEFFICIENTS).select(decode_work(COEFFICIENTS)).collect()
    assert work.item(0, "decode_weight_bytes") == pytest.approx(1e9 + 1e9 / 0.7, rel=1e-6)
    # 32 x 77.91 us + 30 x 24.0373 us + 10 x 6.4798 us
    assert work.item(0, "decode_fixed_s") == pytest.approx(2493.12e-6 + 721.12e-6 + 64.80e-6, rel=1e-4)


def test_layer_split_pays_a_hop_and_gains_nothing() -> None:
    one, split = speeds(gpu_frame(), {}, {"parallel_mode": "layer", "n_gpus": 4})
    assert split["full_s"] - one["full_s"] == pytest.approx(3 * 319.7533e-6, rel=1e-3)
    assert split["decode_tok_s_bound"] == pytest.approx(one["decode_tok_s_bound"])


def test_tensor_parallel_divides_bytes_and_pays_per_layer() -> None:
    base, tensor = (
        recipe_coefficients(recipe_frame({}, {"parallel_mode": "tensor", "n_gpus": 4, "kv_replication": 2.0}),
                            COEFFICIENTS).select(decode_work(COEFFICIENTS)).collect().to_dicts()
    )  # fmt: skip
    assert tensor["decode_weight_bytes"] == pytest.approx(base["decode_weight_bytes"] / 4, rel=1e-6)
    assert tensor["decode_kv_effective_bytes"] == pytest.approx(
        base["decode_kv_effective_bytes"] / 2, rel=1e-6
    )
    assert tensor["decode_fixed_s"] - base["decode_fixed_s"] == pytest.approx(32 * 29.9326e-6, rel=1e-3)


def test_columns_and_literals_agree() -> None:
    """The same row with the GPU joined as columns (anchors) and given as numbers (cube)."""
    gpu = gpu_coefficients(gpu_frame(), COEFFICIENTS).filter(pl.col("backend") == "cuda")
    work = recipe_coefficients(recipe_frame(), COEFFICIENTS).select(*decode_work(COEFFICIENTS), *bound_work())
    joined = work.join(gpu.lazy(), how="cross").select(decode_tok_s()).collect().item()
    assert joined == pytest.approx(
        work.select(decode_tok_s(gpu=gpu.row(0, named=True))).collect().item(), rel=1e-5
    )


def test_unknown_parts_give_no_speed() -> None:
    assert speeds(gpu_frame(), {"n_layers": None}, {})[0]["decode_tok_s_mid"] is None
    assert speeds(gpu_frame(bandwidth_gb_s=None, bandwidth_arithmetic_gb_s=None))[0]["start"] is None


@settings(max_examples=25, deadline=None)
@given(read=BYTES, kv=BYTES, more=st.floats(1.01, 10))
def test_more_bytes_are_slower(read: float, kv: float, more: float) -> None:
    base = {"dense_read_bytes": read, "kv_read_bytes": kv}
    first, weights, cache = speeds(
        gpu_frame(), base, base | {"dense_read_bytes": read * more}, base | {"kv_read_bytes": kv * more}
    )
    for slower in (weights, cache):
        assert slower["decode_tok_s_mid"] <= first["decode_tok_s_mid"]
        assert slower["decode_tok_s_bound"] <= first["decode_tok_s_bound"]
    assert first["decode_tok_s_mid"] <= first["start"]


@settings(max_examples=15, deadline=None)
@given(bandwidth=st.floats(10, 9000), more=st.floats(1.01, 10))
def test_more_bandwidth_is_faster(bandwidth: float, more: float) -> None:
    slow, fast = (
        speeds(gpu_frame(bandwidth_gb_s=value, bandwidth_arithmetic_gb_s=value))[0]
        for value in (bandwidth, bandwidth * more)
    )
    assert fast["decode_tok_s_mid"] > slow["decode_tok_s_mid"]
    assert fast["decode_tok_s_bound"] >= slow["decode_tok_s_bound"]


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from(["nv-blackwell", "nv-ada", "nv-hopper", "cpu", "unseen"]),
    engine=st.sampled_from(["llama.cpp", "ik_llama.cpp", "vllm", "unseen"]),
    quant=st.sampled_from(["8bit", "mxfp4", "q4k", "ternary", None]),
    layers=st.integers(0, 200),
    read=BYTES,
    kv=st.floats(0, 1e12),
    gpus=st.sampled_from([1, 2, 8]),
    mode=st.sampled_from(["none", "layer", "tensor"]),
    clock=st.sampled_from([None, 1500.0]),
)
def test_nothing_is_above_the_bound(
    family: str, engine: str, quant: str | None, layers: int, read: float, kv: float, gpus: int, mode: str,
    clock: float | None,
) -> None:  # fmt: skip
    change = {"engine": engine, "quant_class": quant, "n_layers": layers, "dense_read_bytes": read,
              "kv_read_bytes": kv, "n_gpus": gpus, "parallel_mode": mode}  # fmt: skip
    row = speeds(gpu_frame(family=family, boost_clock_mhz=clock), change)[0]
    assert row["low"] <= row["decode_tok_s_mid"] <= row["high"] <= row["decode_tok_s_bound"]
    assert row["decode_tok_s_bound"] <= row["start_bound"]
    assert row["start"] <= row["start_bound"]
