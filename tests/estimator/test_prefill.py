"""Prompt time by hand, attention operations with windows, and the direction physics says."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.calibration import gpu_coefficients, recipe_coefficients
from estimator.prefill import attention_flops, prefill_tok_s, prefill_work, prompt_s, ttft_ms
from tests.estimator.speed_cases import coefficients, gpu_frame, recipe_frame

COEFFICIENTS = coefficients()
LAYER = {"model": "m", "n_layers": 32, "mixer": "full", "n_heads": 32, "k_head_dim": 128, "v_head_dim": 128,
         "latent_dim": None, "window_tokens": None}  # fmt: skip
LAYER_SCHEMA = {name: pl.String if isinstance(value, str) else pl.Int64 for name, value in LAYER.items()}


def seconds(*changes: dict[str, Any], gpu: pl.DataFrame | None = None) -> list[float]:
    table = gpu_coefficients(gpu_frame() if gpu is None else gpu, COEFFICIENTS)
    row = table.filter(pl.col("backend") == "cuda").row(0, named=True)
    work = recipe_coefficients(recipe_frame(*changes), COEFFICIENTS).with_columns(prefill_work(COEFFICIENTS))
    return work.select(prompt_s(row).alias("s")).collect().get_column("s").to_list()


def flops(*layers: dict[str, Any], tokens: int) -> tuple[float, float]:
    frame = pl.LazyFrame([{**LAYER, **layer} for layer in layers], schema=LAYER_SCHEMA)
    row = attention_flops(frame, pl.LazyFrame({"tokens": [tokens]})).collect().row(0, named=True)
    return row["attention_prefill_flops"], row["attention_decode_flops"]


def test_one_card_by_hand() -> None:
    """RTX 4090, Llama-3-8B Q4_K_M, 4096 tokens = 8 micro-batches.

    products   2 x 4096 x 7.505e9 / (0.3319 x 1.2467 x 0.9645 x 1.0434 x 0.9909 x 330.3e12) = 451.1 ms
    attention  2 x 32 x 4096^3 / (0.4613 x 3.7489 x 330.3e12)                               =   7.7 ms
    re-read    8 x 4.6175e9 / (0.75 x 1008e9)                                               =  48.9 ms
    layers     8 x 32 x 627.2561 us x 1.1153                                                = 179.1 ms
    """
    assert seconds({})[0] * 1e3 == pytest.approx(451.1 + 7.7 + 48.9 + 179.1, rel=1e-3)


def test_measured_prompt_speed_is_met_within_a_quarter() -> None:
    # XiongjieDai, RTX 4090, Llama-3-8B Q4_K_M, 4096 tokens: 5266 tokens per second
    assert 4096 / seconds({})[0] == pytest.approx(5266, rel=0.25)


def test_short_prompts_are_one_micro_batch() -> None:
    short, shorter = ({"context_tokens": tokens, "attention_prefill_flops": 0.0} for tokens in (512, 1))
    one, other = seconds(short, shorter)
    assert one - other == pytest.approx(2 * 511 * 7.505e9 / (0.41642 * 0.9909 * 330.3e12), rel=1e-3)


def test_experts_run_at_lower_utilisation() -> None:
    work = recipe_coefficients(recipe_frame({"expert_active_params": 5e9}), COEFFICIENTS)
    row = work.select(prefill_work(COEFFICIENTS)).collect().row(0, named=True)
    assert row["prefill_effective_flops"] == pytest.approx(
        2 * 4096 * (2.505e9 + 5e9 / 0.5922) / 0.41642, rel=1e-4
    )


def test_layer_split_is_assumed_to_gain_nothing() -> None:
    one, split = seconds({}, {"n_gpus": 4, "parallel_mode": "layer"})
    assert one <= split <= 1.01 * one


def test_tensor_parallel_divides_work_and_pays_for_the_exchange() -> None:
    tensor = {"n_gpus": 2, "parallel_mode": "tensor"}
    fast, slow = (seconds(tensor, gpu=gpu_frame(link_gb_s=link))[0] for link in (900.0, 32.0))
    # 2 x 32 layers x (2 x 1/2) x 4096 tokens x 4096 wide x 2 bytes over 8 or 225 GB/s
    volume = 2 * 32 * 4096 * 4096 * 2
    assert slow - fast == pytest.approx(volume / 8e9 - volume / 225e9, rel=1e-3)
    assert fast < seconds({})[0]


def test_unknown_rate_or_link_gives_no_speed() -> None:
    unknown = dict.fromkeys(
        ("fp16_dense_tflops", "fp16_fp16acc_dense_tflops", "bf16_dense_tflops", "fp32_tflops")
    )
    assert seconds({}, gpu=gpu_frame(**unknown)) == [None]
    no_link = gpu_frame(pcie_gen=None)
    assert seconds({"n_gpus": 2, "parallel_mode": "tensor"}, gpu=no_link) == [None]
    assert seconds({}, gpu=no_link)[0] > 0  # one card needs no link


def test_speed_and_first_token_are_the_same_time() -> None:
    row = pl.LazyFrame({"context_tokens": [4096], "s": [0.5]}).select(
        prefill_tok_s(pl.col("s")).alias("speed"), ttft_ms(pl.col("s")).alias("first")
    )
    assert row.collect().row(0) == (8192.0, 500.0)


def test_attention_of_a_causal_prompt() -> None:
    # two products of 2 x 32 heads x 128, half of 1000 x 1000 positions, 32 layers
    assert flops({}, tokens=1000) == (4 * 32 * 128 * 32 * 1000**2 / 2, 4 * 32 * 128 * 32 * 1000)


def test_attention_of_a_window_stops_growing() -> None:
    full, window, linear = (
        {"n_layers": 1},
        {"n_layers": 1, "mixer": "sliding", "window_tokens": 100},
        {"mixer": "linear"},
    )
    prompt, step = flops(full, window, linear, tokens=1000)
    assert prompt == 4 * 32 * 128 * (1000**2 / 2 + 100 * 1000 - 100**2 / 2)
    assert step == 4 * 32 * 128 * (1000 + 100)
    assert flops(window, tokens=50) == flops(full, tokens=50)


def test_attention_of_unstated_shape_is_unknown() -> None:
    assert flops({}, {"n_heads": None}, tokens=1000) == (None, None)
    assert flops({"n_heads": None, "mixer": "mamba"}, tokens=1000) == (0.0, 0.0)


@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(1, 1_000_000), more=st.floats(1.01, 4))
def test_longer_prompts_and_larger_models_take_longer(tokens: int, more: float) -> None:
    base = {"context_tokens": tokens}
    one, longer, larger = seconds(
        base, {"context_tokens": int(tokens * more) + 1}, base | {"active_params": 7.505e9 * more}
    )
    assert one <= longer
    assert one < larger
