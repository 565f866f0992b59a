"""The law by hand: distinct bytes at the bandwidth, operations at the top rate, per rank or over stages."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.bound import bound_work, decode_tok_s_bound
from estimator.calibration import gpu_coefficients
from tests.estimator.speed_cases import coefficients, gpu_frame, recipe_frame


def bound(cache: str = "full", gpu: pl.DataFrame | None = None, **change: Any) -> float:
    table = gpu_coefficients(gpu_frame() if gpu is None else gpu, coefficients())
    row = table.filter(pl.col("backend") == "cuda").row(0, named=True)
    frame = recipe_frame(change).select(bound_work())
    return frame.select(decode_tok_s_bound(cache, row)).collect().item()  # type: ignore[arg-type]


def test_bytes_over_bandwidth() -> None:
    # 1008e9 / 4.6175e9, and with a full cache of 4096 x 131072 bytes
    assert bound("start") == pytest.approx(218.30, rel=1e-4)
    assert bound("full") == pytest.approx(1008e9 / (4.6175e9 + 536870912), rel=1e-5)


def test_operations_bind_when_bytes_are_few() -> None:
    # 2 x 7.505e9 operations at 660.6 TOPS, 1 MB of weights
    assert bound("start", dense_read_bytes=1e6) == pytest.approx(660.6e12 / 15.01e9, rel=1e-5)


def test_attention_operations_count_only_with_a_full_cache() -> None:
    few = {"dense_read_bytes": 1e6, "kv_read_bytes": 1e6, "attention_decode_flops": 15.01e9}
    assert bound("full", **few) == pytest.approx(bound("start", **few) / 2, rel=1e-5)


def test_unknown_attention_operations_leave_a_bound() -> None:
    assert bound("full", attention_decode_flops=None) == pytest.approx(bound("full"))


def test_experts_in_use_are_read() -> None:
    assert bound("start", expert_read_bytes=4.6175e9) == pytest.approx(218.30 / 2, rel=1e-4)


def test_tensor_ranks_share_weights_and_replicated_cache_is_read_on_each() -> None:
    change = {"n_gpus": 8, "parallel_mode": "tensor", "kv_replication": 4.0}
    assert bound("start", **change) == pytest.approx(8 * 218.30, rel=1e-4)
    assert bound("full", **change) == pytest.approx(8 * 1008e9 / (4.6175e9 + 4 * 536870912), rel=1e-5)


def test_layer_split_gains_nothing() -> None:
    assert bound("full", n_gpus=8, parallel_mode="layer") == pytest.approx(bound("full"))


def test_unknown_rates_leave_the_bytes() -> None:
    rates = ("fp16_dense_tflops", "fp16_fp16acc_dense_tflops", "bf16_dense_tflops", "fp8_dense_tflops",
             "int8_dense_tops", "fp32_tflops")  # fmt: skip
    assert bound("start", gpu_frame(**dict.fromkeys(rates))) == pytest.approx(218.30, rel=1e-4)
